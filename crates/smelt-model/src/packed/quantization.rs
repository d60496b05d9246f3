//! Reads what a configuration says of quantised weights.
//!
//! The object `quantization_config` comes in, a [`Quantization`] or a refusal by name comes out.
//! Knows no tensors.

use std::path::Path;

use serde_json::Value;

use super::PackedError;
use super::stored::group_size;
use super::zeros::Label;

/// How the linear weights of a checkpoint are packed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Quantization {
    /// The format.
    pub(crate) method: Method,
    /// Modules that stay floats: parts of their names, or whole names; patterns are left out, since
    /// the tensors show what they mean.
    kept: Vec<String>,
}

/// A format of packed weights.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Method {
    /// AutoAWQ's "gemm" layout.
    Awq {
        /// The group size; nothing for one group a row.
        group: Option<usize>,
    },
    /// GPTQ.
    Gptq {
        /// Bits of a quant.
        bits: u32,
        /// The group size; nothing for one group a row.
        group: Option<usize>,
        /// What the zeros are said to be.
        label: Label,
    },
    /// compressed-tensors, "pack-quantized".
    CompressedTensors {
        /// The kinds of layers there are; at least one.
        layers: Vec<Layer>,
    },
}

/// One of the kinds of layers of a compressed-tensors configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layer {
    /// Bits of a quant.
    pub(crate) bits: u32,
    /// The group size; nothing for one group a row.
    pub(crate) group: Option<usize>,
    /// Whether it has no zeros.
    pub(crate) is_symmetric: bool,
}

/// The method of configurations older than the field that names it, which say `load_in_4bit`.
const BITSANDBYTES: &str = "bitsandbytes";

/// The method where none is named.
const UNNAMED: &str = "compressed-tensors";

/// What to do about weights in a form that is not read.
const ADVICE: &str = "start from the unquantised checkpoint and use `smelt quantize`";

/// What `quant_method` may name besides the formats that are read, in words.
const REFUSED: [(&str, &str); 16] = [
    ("torchao", "quantised by TorchAO"),
    ("fp8", "FP8"),
    ("fbgemm_fp8", "FP8 (FBGEMM)"),
    ("mxfp4", "MXFP4"),
    ("mxfp8", "MXFP8"),
    ("nvfp4", "NVFP4"),
    ("hqq", "quantised by HQQ"),
    ("eetq", "quantised by EETQ"),
    ("aqlm", "quantised by AQLM"),
    ("quanto", "quantised by Quanto"),
    ("vptq", "quantised by VPTQ"),
    ("higgs", "quantised by HIGGS"),
    ("spqr", "quantised by SpQR"),
    ("quark", "quantised by Quark"),
    ("bitnet", "BitNet's ternary weights"),
    ("auto-round", "in AutoRound's own layout"),
];

impl Quantization {
    /// What `config` says; nothing if its weights are not quantised.
    ///
    /// # Errors
    /// [`PackedError`] naming `path` and the form that is not read, or the field that is wrong.
    pub(crate) fn of(config: &Value, path: &Path) -> Result<Option<Self>, PackedError> {
        let places = ["quantization_config", "compression_config"];
        let objects = [config, &config["text_config"], &config["llm_config"]];
        let found = objects.iter().flat_map(|object| places.map(|place| &object[place]));
        let Some(section) = found.into_iter().find(|value| value.is_object()) else {
            return Ok(None);
        };
        Section { section, path }.read().map(Some)
    }

    /// Whether `module` (a stored name without `.weight`) is one that stays floats.
    pub(crate) fn keeps(&self, module: &str) -> bool {
        let is_whole = matches!(self.method, Method::CompressedTensors { .. });
        self.kept.iter().any(|kept| if is_whole { kept == module } else { has_part(module, kept) })
    }
}

/// Whether `part` occurs in `module` as whole words between dots.
fn has_part(module: &str, part: &str) -> bool {
    format!(".{module}.").contains(&format!(".{part}."))
}

/// The object being read.
#[derive(Clone, Copy)]
struct Section<'a> {
    section: &'a Value,
    path: &'a Path,
}

impl Section<'_> {
    fn read(self) -> Result<Quantization, PackedError> {
        let is_bitsandbytes = ["load_in_4bit", "load_in_8bit"].map(|f| self.section[f] == true);
        let unnamed = if is_bitsandbytes.contains(&true) { BITSANDBYTES } else { UNNAMED };
        let method = match self.section["quant_method"].as_str().unwrap_or(unnamed) {
            "awq" => self.awq()?,
            "gptq" => self.gptq()?,
            "compressed-tensors" => self.compressed_tensors()?,
            other => return Err(self.refused(other)),
        };
        Ok(Quantization { method, kept: self.kept() })
    }

    fn awq(self) -> Result<Method, PackedError> {
        let version = self.section["version"].as_str().unwrap_or("gemm").to_lowercase();
        self.only("version", &version, &["gemm"])?;
        self.bits(&["bits", "w_bit"], &[4])?;
        Ok(Method::Awq { group: self.group(&["group_size", "q_group_size"])? })
    }

    fn gptq(self) -> Result<Method, PackedError> {
        let named = ["checkpoint_format", "format"].map(|field| self.section[field].as_str());
        let format = named.into_iter().flatten().next().unwrap_or("gptq");
        self.only("checkpoint_format", format, &["gptq", "gptq_v2"])?;
        if self.section["is_marlin_format"] == true {
            return Err(self.unsupported("GPTQ in Marlin's layout".to_owned()));
        }
        let label = if format == "gptq" { Label::GptqV1 } else { Label::GptqV2 };
        let bits = self.bits(&["bits"], &[4, 8])?;
        Ok(Method::Gptq { bits, group: self.group(&["group_size"])?, label })
    }

    fn compressed_tensors(self) -> Result<Method, PackedError> {
        let Some(groups) = self.section["config_groups"].as_object().filter(|all| !all.is_empty())
        else {
            let field = "quantization_config.config_groups";
            return Err(self.bad(field, &self.section["config_groups"], "an object of groups"));
        };
        let mut layers = Vec::new();
        for (name, group) in groups {
            let format = group["format"].as_str().or(self.section["format"].as_str());
            let format = format.unwrap_or("pack-quantized");
            if format != "pack-quantized" {
                let what = format!("compressed-tensors of the format {format:?}");
                return Err(self.unsupported(what));
            }
            layers.push(self.layer(name, &group["weights"])?);
        }
        Ok(Method::CompressedTensors { layers })
    }

    fn layer(self, name: &str, weights: &Value) -> Result<Layer, PackedError> {
        let field =
            |field: &str| format!("quantization_config.config_groups.{name}.weights.{field}");
        let refuse =
            |part: &str, expected: &str| Err(self.bad(&field(part), &weights[part], expected));
        let bits = match weights["num_bits"].as_u64() {
            Some(bits @ (4 | 8)) => bits as u32,
            _ => return refuse("num_bits", "4 or 8"),
        };
        if weights["type"].as_str().is_some_and(|kind| kind != "int") {
            return refuse("type", "\"int\"");
        }
        let is_symmetric = weights["symmetric"].as_bool().unwrap_or(true);
        if bits == 8 && !is_symmetric {
            return refuse("symmetric", "true where num_bits is 8");
        }
        let group = match weights["strategy"].as_str() {
            Some("channel") => None,
            Some("group") => match weights["group_size"].as_i64().map(group_size) {
                Some(Ok(group)) => group,
                Some(Err(expected)) => return refuse("group_size", &expected),
                None => return refuse("group_size", "a number"),
            },
            _ => return refuse("strategy", "\"group\" or \"channel\""),
        };
        Ok(Layer { bits, group, is_symmetric })
    }

    fn bits(self, names: &[&str], supported: &[u64]) -> Result<u32, PackedError> {
        let (name, value) = self.first(names);
        match value.as_u64().filter(|bits| supported.contains(bits)) {
            Some(bits) => Ok(bits as u32),
            None => Err(self.bad(&name, value, &one_of(supported))),
        }
    }

    fn group(self, names: &[&str]) -> Result<Option<usize>, PackedError> {
        let (name, value) = self.first(names);
        let Some(found) = value.as_i64() else { return Err(self.bad(&name, value, "a number")) };
        group_size(found).map_err(|expected| self.bad(&name, value, &expected))
    }

    /// The first of the fields that is there, or the first.
    fn first(&self, names: &[&str]) -> (String, &Value) {
        let is_there = |name: &&&str| !self.section[**name].is_null();
        let name = names.iter().find(is_there).unwrap_or(&names[0]);
        (format!("quantization_config.{name}"), &self.section[*name])
    }

    fn only(self, name: &str, found: &str, supported: &[&str]) -> Result<(), PackedError> {
        if supported.contains(&found) {
            return Ok(());
        }
        let field = format!("quantization_config.{name}");
        Err(self.bad(&field, &Value::from(found), &one_of(supported)))
    }

    /// The names of modules that were not converted.
    fn kept(self) -> Vec<String> {
        let lists =
            ["modules_to_not_convert", "ignore"].map(|field| self.section[field].as_array());
        let names = lists.into_iter().flatten().flatten().filter_map(Value::as_str);
        names.filter(|name| !name.starts_with("re:")).map(str::to_owned).collect()
    }

    fn refused(self, method: &str) -> PackedError {
        let is = |field: &str| self.section[field] == true;
        if method == BITSANDBYTES {
            let kind = match self.section["bnb_4bit_quant_type"].as_str() {
                _ if is("load_in_8bit") => "LLM.int8()".to_owned(),
                kind => kind.unwrap_or("fp4").to_uppercase(),
            };
            return self.unsupported(format!("quantised by bitsandbytes ({kind})"));
        }
        if method == "modelopt" {
            let kind = self.section["quant_algo"].as_str().unwrap_or("FP8 or NVFP4");
            return self.unsupported(format!("quantised by ModelOpt ({kind})"));
        }
        let known = REFUSED.iter().find(|(name, _)| *name == method);
        let unknown = || format!("quantised by the unknown method {method:?}");
        self.unsupported(known.map_or_else(unknown, |(_, words)| (*words).to_owned()))
    }

    fn unsupported(self, what: String) -> PackedError {
        PackedError::Unsupported { path: self.path.into(), what, advice: ADVICE }
    }

    fn bad(self, field: &str, found: &Value, expected: &str) -> PackedError {
        PackedError::BadField {
            path: self.path.into(),
            field: field.to_owned(),
            found: found.to_string(),
            expected: expected.to_owned(),
        }
    }
}

fn one_of<T: std::fmt::Debug>(supported: &[T]) -> String {
    supported.iter().map(|one| format!("{one:?}")).collect::<Vec<_>>().join(" or ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Option<Quantization>, String> {
        let config = serde_json::from_str(text).unwrap();
        Quantization::of(&config, Path::new("config.json")).map_err(|error| error.to_string())
    }

    fn section(text: &str) -> Result<Quantization, String> {
        read(&format!("{{\"quantization_config\":{text}}}")).map(Option::unwrap)
    }

    #[track_caller]
    fn refused(text: &str, words: &str) {
        let error = section(text).unwrap_err();
        assert!(error.contains(words) && error.contains("config.json: "), "{error}");
    }

    #[test]
    fn awq_and_gptq_are_read() {
        let awq = section(
            r#"{"quant_method":"awq","bits":4,"group_size":128,"version":"gemm",
            "zero_point":true,"modules_to_not_convert":["visual"]}"#,
        )
        .unwrap();
        assert_eq!(awq.method, Method::Awq { group: Some(128) });
        assert!(awq.keeps("visual.blocks.0.attn.qkv") && awq.keeps("model.visual.x"));
        assert!(!awq.keeps("model.visuals.x") && !awq.keeps("model.layers.0.mlp.up_proj"));
        let gptq = |more: &str| {
            section(&format!("{{\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":-1{more}}}"))
        };
        let expect = |label| Method::Gptq { bits: 4, group: None, label };
        assert_eq!(gptq("").unwrap().method, expect(Label::GptqV1));
        let v2 = gptq(",\"checkpoint_format\":\"gptq_v2\"").unwrap();
        assert_eq!(v2.method, expect(Label::GptqV2));
    }

    #[test]
    fn compressed_tensors_are_read_wherever_they_are_described() {
        let text = r#"{"quant_method":"compressed-tensors","format":"pack-quantized",
            "ignore":["lm_head","re:visual.*"],"config_groups":{"group_0":{"targets":["Linear"],
            "weights":{"num_bits":4,"type":"int","symmetric":false,"strategy":"group",
            "group_size":32}}}}"#;
        let layer = Layer { bits: 4, group: Some(32), is_symmetric: false };
        let found = section(text).unwrap();
        assert_eq!(found.method, Method::CompressedTensors { layers: vec![layer] });
        assert!(found.keeps("lm_head") && !found.keeps("model.lm_head"));
        let nested = read(&format!("{{\"text_config\":{{\"quantization_config\":{text}}}}}"));
        assert_eq!(nested.unwrap().unwrap(), found);
        assert_eq!(read("{}"), Ok(None));
    }

    #[test]
    fn other_forms_are_refused_by_name() {
        let method = |name: &str| format!("{{\"quant_method\":\"{name}\"}}");
        let bnb =
            r#"{"quant_method":"bitsandbytes","load_in_4bit":true,"bnb_4bit_quant_type":"nf4"}"#;
        refused(bnb, "are quantised by bitsandbytes (NF4), which smelt does not read; start from");
        refused(&method("bitsandbytes"), "bitsandbytes (FP4)");
        let int8 = r#"{"quant_method":"bitsandbytes","load_in_8bit":true}"#;
        refused(int8, "bitsandbytes (LLM.int8())");
        refused(r#"{"load_in_4bit":true}"#, "bitsandbytes (FP4)");
        for (name, words) in REFUSED {
            refused(&method(name), words);
        }
        refused(r#"{"quant_method":"modelopt","quant_algo":"NVFP4"}"#, "ModelOpt (NVFP4)");
        refused(&method("magic"), "unknown method \"magic\"");
        let format = r#"{"format":"nvfp4-pack-quantized","config_groups":{"a":{}}}"#;
        refused(format, "compressed-tensors of the format \"nvfp4-pack-quantized\"");
        let marlin = r#"{"quant_method":"gptq","is_marlin_format":true,"bits":4,"group_size":128}"#;
        refused(marlin, "Marlin");
    }

    #[test]
    fn values_that_are_not_read_name_their_field() {
        let awq = |bits: &str, group: &str, version: &str| {
            format!(
                r#"{{"quant_method":"awq","bits":{bits},"group_size":{group},"version":"{version}"}}"#
            )
        };
        refused(&awq("3", "128", "gemm"), "quantization_config.bits is 3, but must be 4");
        refused(&awq("4", "48", "gemm"), "group_size is 48, but must be -1 or one of [16, 32");
        refused(&awq("4", "\"x\"", "gemm"), "group_size is \"x\", but must be a number");
        refused(&awq("4", "128", "gemv"), "version is \"gemv\", but must be \"gemm\"");
        let layer =
            |weights: &str| format!("{{\"config_groups\":{{\"g\":{{\"weights\":{weights}}}}}}}");
        refused(&layer("{}"), "config_groups.g.weights.num_bits is null, but must be 4 or 8");
        let float = r#"{"num_bits":4,"type":"float","strategy":"group","group_size":32}"#;
        refused(&layer(float), "weights.type is \"float\"");
        let asymmetric = r#"{"num_bits":8,"symmetric":false,"strategy":"channel"}"#;
        refused(&layer(asymmetric), "symmetric is false, but must be true where num_bits is 8");
        refused(&layer(r#"{"num_bits":4,"strategy":"tensor"}"#), "strategy is \"tensor\"");
        refused("{}", "config_groups is null, but must be an object of groups");
    }
}
