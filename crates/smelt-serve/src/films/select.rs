//! Writes what `ffmpeg` is told to write the chosen frames alone, each with its time.

/// The beginning of a line that stands beside each time: the filter tells times only of frames that carry a word.
pub(super) const MARK: &str = "smelt=";

/// What `ffmpeg` is told: of the frames from each of `times` on the first, of at most so many pixels.
pub(super) fn arguments(times: &[f64], pixels: u64) -> Vec<String> {
    let smaller = format!("min(1\\,sqrt({pixels}/(iw*ih)))");
    let side = |side: &str| format!("max(1\\,trunc({side}*{smaller}))");
    let filters = [
        format!("select={}", escaped(&first_from(times))),
        "metadata=mode=add:key=smelt:value=1".to_owned(),
        "metadata=mode=print:file=pipe\\\\:2:direct=1".to_owned(),
        format!("scale=w={}:h={}", side("iw"), side("ih")),
        "format=rgb24".to_owned(),
    ];
    let words =
        ["-vsync", "passthrough", "-frames:v", &times.len().to_string(), "-vf", &filters.join(",")];
    let words = words.into_iter().chain(["-c:v", "ppm", "-f", "image2pipe", "pipe:1"]);
    words.map(str::to_owned).collect()
}

/// True of the first frame from each time on; of a frame for which several have come, once.  Variable 0 is how many have.
fn first_from(times: &[f64]) -> String {
    let next = tree(times, 0);
    format!("st(1,ld(0));while(gte(t,{next}),st(0,ld(0)+1));gt(ld(0),ld(1))")
}

/// The time of the number in variable 0; behind the last one never.
fn tree(times: &[f64], first: usize) -> String {
    match times {
        [] => "1e18".to_owned(),
        [one] => format!("if(gt(ld(0),{first}),1e18,{one:.6})"),
        _ => {
            let (low, high) = times.split_at(times.len() / 2);
            let middle = first + low.len();
            format!("if(lt(ld(0),{middle}),{},{})", tree(low, first), tree(high, middle))
        }
    }
}

fn escaped(expression: &str) -> String {
    expression.replace(',', "\\,").replace(';', "\\;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_time_is_found_by_halving() {
        let two = "if(lt(ld(0),1),if(gt(ld(0),0),1e18,0.500000),if(gt(ld(0),1),1e18,2.000000))";
        assert_eq!(tree(&[0.5, 2.0], 0), two);
        let many: Vec<f64> = (0..768).map(f64::from).collect();
        // The kernel takes 128 KiB in one argument, and the filter's parser nests 100 deep.
        assert!(arguments(&many, 9).iter().all(|word| word.len() < 64 << 10));
    }
}
