//! Declares the words that fields take as enums, and reads params by their types.
//!
//! A word of a pipeline stands in one place, which the parser, the schema and the workers share.  Whoever
//! acts on one matches on its enum, so that a new word is a choice that somebody has to make.

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{TARGET, Values};

/// Declares an enum of words.  They are listed in its order in messages.
macro_rules! words {
    ($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name {
            $($(#[$doc])* $variant,)+
        }

        impl $name {
            /// Every choice.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];
            /// Their words in the pipeline file.
            pub const WORDS: &'static [&'static str] = &[$($word),+];

            /// The word in the pipeline file.
            pub const fn word(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)+
                }
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                let word = <String as serde::Deserialize>::deserialize(from)?;
                let found = Self::ALL.iter().copied().find(|choice| choice.word() == word);
                found.ok_or_else(|| serde::de::Error::unknown_variant(&word, Self::WORDS))
            }
        }
    };
}
pub(super) use words;

words! {
    /// A float type of weights and products.
    FloatType {
        /// IEEE single precision.
        F32 = "f32",
        /// IEEE half precision.
        F16 = "f16",
        /// The upper half of an f32.
        Bf16 = "bf16",
    }
}

words! {
    /// Who executes a decoder: the native engine alone, so far.
    DecoderBackend {
        /// smelt's own engine.
        Native = "native",
    }
}

words! {
    /// The form in which keys and values are kept.
    KvForm {
        /// As they were computed.
        F32 = "f32",
        /// Rounded to half precision.
        F16 = "f16",
        /// Levels of one byte, with a scale for each position and head.
        Int8 = "int8",
    }
}

words! {
    /// What runs an engine.
    EngineTarget {
        /// Processors: every path of theirs is in one engine.
        Cpu = "cpu",
        /// NVIDIA's GPUs of compute capability 8.7: Jetson Orin.
        CudaSm87 = "cuda-sm87",
        /// Of 9.0: Hopper.
        CudaSm90 = "cuda-sm90",
        /// Of 11.0: Jetson Thor.
        CudaSm110 = "cuda-sm110",
    }
}

impl EngineTarget {
    /// What makes engines for it, beside smelt's own code: kernels are a part of them, so their compiler's version and the
    /// layout of weights that they read enter the keys.  Which GPU and driver a machine has does not.
    pub const fn made_with(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Cpu => &[],
            Self::CudaSm87 | Self::CudaSm90 => &[("compiler", "nvrtc 12.6.85"), LAYOUT],
            Self::CudaSm110 => &[("compiler", "nvrtc 13.0.88"), LAYOUT],
        }
    }
}

/// The layout of weights that the kernels of this version read.
const LAYOUT: (&str, &str) = ("layout", "6");

/// What a stage's target is made with.
pub(super) fn made_with(params: &Values) -> &'static [(&'static str, &'static str)] {
    param::<EngineTarget>(params, TARGET).map_or(&[], EngineTarget::made_with)
}

/// All params of a stage by their types, for `T` the params of its kind.
///
/// # Errors
/// What does not read; params that were parsed from a pipeline do.
pub fn typed<T: DeserializeOwned>(params: &Values) -> Result<T, serde_json::Error> {
    let params = params.iter().map(|(name, value)| (name.clone(), value.clone()));
    serde_json::from_value(Value::Object(params.collect()))
}

/// One param by its type; nothing where it is not given.
pub fn param<T: DeserializeOwned>(params: &Values, name: &str) -> Option<T> {
    serde_json::from_value(params.get(name)?.clone()).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn words_round_trip_and_others_are_refused() {
        for (&choice, &word) in FloatType::ALL.iter().zip(FloatType::WORDS) {
            assert_eq!(choice.word(), word);
            assert_eq!(serde_json::from_value::<FloatType>(json!(word)).unwrap(), choice);
        }
        let why = serde_json::from_value::<FloatType>(json!("f64")).unwrap_err().to_string();
        assert!(why.contains("f64") && why.contains("bf16"), "{why}");
    }

    #[test]
    fn only_engines_with_kernels_depend_on_a_compiler() {
        let made = |word: &str| made_with(&Values::from([(TARGET.to_owned(), json!(word))]));
        assert_eq!((made("cpu").len(), made_with(&Values::new()).len()), (0, 0));
        assert_eq!(made("cuda-sm87"), made("cuda-sm90"), "the target itself is in the key");
        assert_ne!(made("cuda-sm87"), made("cuda-sm110"));
    }

    #[test]
    fn one_param_is_read_where_it_is_given() {
        let params = Values::from([("to".to_owned(), json!("f16"))]);
        assert_eq!(param(&params, "to"), Some(FloatType::F16));
        assert_eq!(param::<FloatType>(&params, "dtype"), None);
    }
}
