//! How much and how long, for people.

/// `0.4 s`, `12.3 s`, `4:05 min`.
pub fn seconds(seconds: f64) -> String {
    if seconds < 60.0 {
        return format!("{seconds:.1} s");
    }
    let whole = seconds.round() as u64;
    format!("{}:{:02} min", whole / 60, whole % 60)
}

/// `512 KiB`, `34.5 MiB`, `4.18 GiB`.
pub fn bytes(bytes: u64) -> String {
    let value = bytes as f64;
    match bytes {
        0..0x10_0000 => format!("{} KiB", bytes >> 10),
        0x10_0000..0x4000_0000 => format!("{:.1} MiB", value / f64::from(1 << 20)),
        _ => format!("{:.2} GiB", value / f64::from(1 << 30)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_read_well() {
        assert_eq!(seconds(0.04), "0.0 s");
        assert_eq!(seconds(245.4), "4:05 min");
        assert_eq!(bytes(0), "0 KiB");
        assert_eq!(bytes(36_175_872), "34.5 MiB");
        assert_eq!(bytes(4_178_000_000), "3.89 GiB");
    }
}
