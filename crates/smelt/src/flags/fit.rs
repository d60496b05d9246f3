//! Declares the flags of `smelt fit`, `smelt init` and `smelt build`.

use std::path::PathBuf;

use clap::Args;
use smelt_backend::KvType;
use smelt_fit::{Wanted, WantedDevice};
use smelt_model::quantize::Scheme;
use smelt_plan::quantity;

use super::kv_type;
use crate::cards::DeviceChoice;

#[derive(Debug, Args)]
pub(crate) struct FitFlags {
    /// A name of the table (internvl3-1b), hf:ORG/NAME (@REV, :FILE), a checkpoint's directory, a GGUF file, or
    /// synthetic:NAME
    pub(crate) model: String,
    /// Another device: a size of memory (8GB), a name (orin-nano-8gb), or a directory of a device's captured files
    #[arg(long = "for", value_name = "DEVICE")]
    pub(crate) for_device: Option<String>,
    #[command(flatten)]
    pub(crate) overrule: OverruleFlags,
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct InitFlags {
    /// A name of the table (internvl3-1b), hf:ORG/NAME (@REV, :FILE), a checkpoint's directory, a GGUF file, or
    /// synthetic:NAME
    pub(crate) model: String,
    /// Write for another device: a size of memory (8GB), a name (orin-nano-8gb), or a directory of captured files
    #[arg(long = "for", value_name = "DEVICE")]
    pub(crate) for_device: Option<String>,
    #[command(flatten)]
    pub(crate) overrule: OverruleFlags,
    /// The pipeline file to write (default: the model's name, here)
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct BuildFlags {
    /// A name of the table (internvl3-1b), hf:ORG/NAME (@REV, :FILE), a checkpoint's directory, a GGUF file, or
    /// synthetic:NAME
    pub(crate) model: String,
    #[command(flatten)]
    pub(crate) overrule: OverruleFlags,
    /// The pipeline file to write and run (default: the model's name, here)
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    /// Print the report as JSON instead of the table
    #[arg(long)]
    pub(crate) json: bool,
}

/// What a person fixes of what would be advised.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct OverruleFlags {
    /// How the decoder is kept: int8, int4 (calibrated), bf16 (as it is), or a scheme of `smelt quantize`
    #[arg(long, value_name = "WORD", value_parser = precision)]
    pub(crate) precision: Option<PrecisionWord>,
    /// Tokens of a prompt with its answer
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(2..))]
    pub(crate) context: Option<u32>,
    /// Most tiles that a picture is cut into
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) tiles: Option<u32>,
    /// How keys and values are kept: f32, f16 or int8, a byte and a scale for each head
    #[arg(long, value_name = "TYPE", value_parser = kv_type)]
    pub(crate) kv: Option<KvType>,
    /// What runs it: the GPU where its engine can be built and fits (auto), the processors, or a card by its number, as in
    /// cuda:1
    #[arg(long, value_name = "auto|cpu|cuda[:N]", default_value_t)]
    pub(crate) device: DeviceChoice,
    /// What the model may hold while it serves, as 3GiB (default: what the device leaves to it); whoever serves it is
    /// held to that
    #[arg(long, value_name = "SIZE", value_parser = memory)]
    pub(crate) memory: Option<SizeWord>,
}

/// A scheme, as it was typed.
#[derive(Debug, Clone)]
pub(crate) struct PrecisionWord {
    word: String,
    pub(crate) scheme: Scheme,
}

/// Bytes, as they were typed.
#[derive(Debug, Clone)]
pub(crate) struct SizeWord {
    pub(crate) word: String,
    bytes: u64,
}

impl OverruleFlags {
    /// The same for who weighs choices.
    pub(crate) fn wanted(&self) -> Wanted {
        let count = |number: Option<u32>| number.map(|number| number as usize);
        Wanted {
            device: match self.device {
                DeviceChoice::Auto => WantedDevice::Auto,
                DeviceChoice::Processors => WantedDevice::Processors,
                DeviceChoice::Card(_) => WantedDevice::Gpu,
            },
            scheme: self.precision.as_ref().map(|precision| precision.scheme.name().to_owned()),
            context: count(self.context),
            tiles: count(self.tiles),
            kv: self.kv.map(|kv| kv.word().to_owned()),
            memory_bytes: self.memory.as_ref().map(|memory| memory.bytes),
        }
    }

    /// As they are typed, each behind a blank; empty where nothing is overruled.
    pub(crate) fn words(&self) -> String {
        let flag = |name: &str, value: Option<String>| {
            value.map_or_else(String::new, |value| format!(" --{name} {value}"))
        };
        let is_named = self.device != DeviceChoice::Auto;
        [
            flag("precision", self.precision.as_ref().map(|precision| precision.word.clone())),
            flag("context", self.context.map(|context| context.to_string())),
            flag("tiles", self.tiles.map(|tiles| tiles.to_string())),
            flag("kv", self.kv.map(|kv| kv.word().to_owned())),
            flag("device", is_named.then(|| self.device.to_string())),
            flag("memory", self.memory.as_ref().map(|memory| memory.word.clone())),
        ]
        .concat()
    }
}

/// Words of people for schemes of weights.
fn precision(word: &str) -> Result<PrecisionWord, String> {
    let scheme = match word {
        "int4" => Some(Scheme::Int4G128),
        "bf16" | "f16" => Some(Scheme::None),
        other => Scheme::parse(other),
    };
    let known = || format!("int8, int4, bf16, or {}", Scheme::WORDS.join(" or "));
    let scheme = scheme.ok_or_else(known)?;
    Ok(PrecisionWord { word: word.to_owned(), scheme })
}

fn memory(word: &str) -> Result<SizeWord, String> {
    let bytes = quantity::bytes(word).map_err(|error| error.to_string())?;
    Ok(SizeWord { word: word.to_owned(), bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_overruled_is_told_as_it_was_typed() {
        let none = OverruleFlags::default();
        assert_eq!((none.words(), none.wanted()), (String::new(), Wanted::default()));
        let flags = OverruleFlags {
            precision: Some(precision("int4").unwrap()),
            context: Some(2048),
            tiles: None,
            kv: Some(KvType::Int8),
            device: DeviceChoice::Card(1),
            memory: Some(memory("3GiB").unwrap()),
        };
        let words = " --precision int4 --context 2048 --kv int8 --device cuda:1 --memory 3GiB";
        assert_eq!(flags.words(), words);
        let wanted = flags.wanted();
        assert_eq!(wanted.scheme.as_deref(), Some("int4-g128"));
        assert_eq!(wanted.kv.as_deref(), Some("int8"));
        assert_eq!((wanted.context, wanted.memory_bytes), (Some(2048), Some(3 << 30)));
        assert_eq!(wanted.device, WantedDevice::Gpu);
        let own = OverruleFlags { device: DeviceChoice::Processors, ..none };
        assert_eq!(
            (own.words().as_str(), own.wanted().device),
            (" --device cpu", WantedDevice::Processors)
        );
    }

    #[test]
    fn precisions_are_words_of_people_and_of_schemes() {
        for (word, scheme) in
            [("bf16", Scheme::None), ("int8", Scheme::Int8), ("int4-g32", Scheme::Int4G32)]
        {
            assert_eq!(precision(word).unwrap().scheme, scheme);
        }
        assert!(precision("q4").unwrap_err().starts_with("int8, int4, bf16, or none"));
        assert!(memory("3GB").is_err());
    }
}
