//! Reads the size of pictures from a text: `448x448`, height first, in pixels.

/// Height and width; the error says what a size looks like.
pub(crate) fn parse(text: &str) -> Result<[usize; 2], String> {
    let side = |digits: &str| {
        let plain = !digits.starts_with('0') && digits.bytes().all(|byte| byte.is_ascii_digit());
        digits.parse().ok().filter(|_| plain)
    };
    let sides =
        text.split_once('x').and_then(|(height, width)| Some([side(height)?, side(width)?]));
    sides.ok_or_else(|| format!("size {text:?} is not HEIGHTxWIDTH in pixels, for example 336x336"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_two_plain_numbers() {
        assert_eq!(parse("448x336"), Ok([448, 336]));
        for text in
            ["", "448", "448x", "x448", "+4x4", "0x4", "4x4x4", "4 x4", "99999999999999999999x1"]
        {
            assert!(parse(text).unwrap_err().contains("HEIGHTxWIDTH"), "{text}");
        }
    }
}
