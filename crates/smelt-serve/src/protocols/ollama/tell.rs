//! Tells Ollama's clients of models.

use std::time::Duration;

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::models::{LATEST, Model, Running};
use crate::protocols::time;

/// A time that never comes: models stay as long as there is room.
const NEVER: &str = "2318-12-31T23:59:59Z";

/// A model's name as Ollama's clients know it.
pub(crate) fn name(name: &str) -> String {
    if name.contains(':') { name.to_owned() } else { format!("{name}{LATEST}") }
}

/// A model of the list; of one that is not in memory little is known.
pub(crate) fn listed(own: &str, model: Option<&Model>) -> Value {
    let name = name(own);
    let created = Duration::from_secs(model.map_or(0, |model| model.created));
    json!({
        "name": name,
        "model": name,
        "modified_at": time::written(created),
        "size": model.map_or(0, |model| model.bytes),
        "digest": digest(own, model),
        "details": details(model),
    })
}

/// A model that is in memory.
pub(crate) fn running(model: &Model) -> Value {
    let mut told = listed(&model.name, Some(model));
    told["expires_at"] = NEVER.into();
    told["size_vram"] = 0.into();
    told["context_length"] = model.running.tokens_max().into();
    told
}

/// All that is known of a model.
pub(crate) fn shown(model: &Model) -> Value {
    json!({
        "modelfile": format!("# built by smelt\nFROM {}\n", model.name),
        "parameters": "",
        "template": "",
        "details": details(Some(model)),
        "model_info": {
            "general.architecture": "smelt",
            "general.basename": model.name,
            "smelt.context_length": model.running.tokens_max(),
        },
        "capabilities": capabilities(&model.running),
        "modified_at": time::written(Duration::from_secs(model.created)),
    })
}

fn details(model: Option<&Model>) -> Value {
    let scheme = model.and_then(|model| model.running.scheme()).unwrap_or_default();
    json!({ "parent_model": "", "format": "smelt", "family": "smelt", "families": ["smelt"],
        "parameter_size": "", "quantization_level": scheme })
}

fn capabilities(running: &Running) -> Vec<&'static str> {
    let service = match running {
        Running::Speaks(service) => service,
        Running::Embeds(_) => return vec!["embedding"],
        // Ollama has no words for these.
        Running::Scores(service) if service.encoder().spec().classifies() => {
            return vec!["classify"];
        }
        Running::Scores(_) => return vec!["rerank"],
        // Its server is not asked in these words.
        Running::Relays(_) => return Vec::new(),
    };
    let dialect = service.text().dialect;
    let all = [
        ("completion", true),
        ("vision", service.text().image_processor.is_some()),
        ("tools", dialect.calls.is_some()),
        ("thinking", dialect.thinks),
    ];
    all.into_iter().filter(|(_, is_able)| *is_able).map(|(word, _)| word).collect()
}

/// A number that is another one when another deployment has the name.
fn digest(name: &str, model: Option<&Model>) -> String {
    let since = model.map_or(0, |model| model.created);
    let digest = Sha256::digest(format!("{name}\n{since}"));
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_a_version() {
        assert_eq!(name("shapes-vl"), "shapes-vl:latest");
        assert_eq!(name("llava:7b"), "llava:7b");
        let told = listed("m", None);
        assert_eq!(told["name"], "m:latest");
        assert_eq!(told["digest"].as_str().map(str::len), Some(64));
        assert_eq!(told["modified_at"], "1970-01-01T00:00:00.000000Z");
    }
}
