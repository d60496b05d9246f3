//! Decides of which traces anybody wants to know, as `OTEL_TRACES_SAMPLER` names it.

/// Which traces are told of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Sampler {
    /// The part of traces that begin here, 0 to 1.
    ratio: f64,
    /// Whether who asks decides, where that is known.
    is_parents: bool,
}

impl Default for Sampler {
    /// The specification's: as who asks wishes, and all others.
    fn default() -> Self {
        Self { ratio: 1.0, is_parents: true }
    }
}

impl Sampler {
    /// The sampler of this name; `argument` is the part of those that take one.
    pub(super) fn named(name: &str, argument: Option<f64>) -> Option<Self> {
        let is_parents = name.starts_with("parentbased_");
        let ratio = match name.trim_start_matches("parentbased_") {
            "always_on" => 1.0,
            "always_off" => 0.0,
            "traceidratio" => argument.unwrap_or(1.0),
            _ => return None,
        };
        Some(Self { ratio, is_parents })
    }

    /// Whether `trace` is told of; `parents` is what its parent decided.
    ///
    /// Whoever samples by the same part decides alike: OpenTelemetry's libraries compare the same bits.
    pub(super) fn wants(&self, trace: u128, parents: Option<bool>) -> bool {
        match parents.filter(|_| self.is_parents) {
            Some(is_sampled) => is_sampled,
            // Numbers of 63 bits, below a bound that is 2^63 for all.
            None => (trace as u64) >> 1 < (self.ratio * (1u64 << 63) as f64) as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samplers_are_those_of_the_specification() {
        let named = |name| Sampler::named(name, Some(0.5)).unwrap();
        let (low, high) = (1 << 62, u128::from(u64::MAX));
        for (name, expect) in [
            ("always_on", [true, true, true, true]),
            ("always_off", [false; 4]),
            ("traceidratio", [true, false, true, false]),
            ("parentbased_always_on", [true, true, true, false]),
            ("parentbased_always_off", [false, false, true, false]),
            ("parentbased_traceidratio", [true, false, true, false]),
        ] {
            let sampler = named(name);
            let given = [(low, None), (high, None), (low, Some(true)), (high, Some(false))];
            assert_eq!(
                given.map(|(trace, parents)| sampler.wants(trace, parents)),
                expect,
                "{name}"
            );
        }
        assert!(named("parentbased_traceidratio").wants(high, Some(true)));
        assert_eq!(Sampler::named("jaeger_remote", None), None);
        assert_eq!(Sampler::named("parentbased_always_on", None), Some(Sampler::default()));
    }

    #[test]
    fn a_part_of_all_traces_is_that_part() {
        let sampler = Sampler::named("traceidratio", Some(0.25)).unwrap();
        let drawn = (0..4000).filter(|_| sampler.wants(crate::traces::drawn().into(), None));
        assert!((800..1200).contains(&drawn.count()));
    }
}
