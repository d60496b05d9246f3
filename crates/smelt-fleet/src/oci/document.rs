//! Reads and writes the JSON documents of OCI: descriptors, manifests of artifacts, lists of manifests.
//!
//! Fields that others add are passed over: who signs a manifest signs its bytes.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use smelt_store::Digest;

/// A manifest, of an artifact too.
pub const MANIFEST_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";
/// A list of manifests.
pub const INDEX_TYPE: &str = "application/vnd.oci.image.index.v1+json";
/// What a manifest has for its config that needs none.
pub const EMPTY_TYPE: &str = "application/vnd.oci.empty.v1+json";
/// The content of that.
pub const EMPTY: &[u8] = b"{}";
/// Registries take no longer ones.
pub const MANIFEST_BYTES_MAX: u64 = 4 << 20;
/// Where image layouts keep a tag.
pub(crate) const REF_NAME: &str = "org.opencontainers.image.ref.name";

/// A digest as OCI writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct OciDigest(pub Digest);

impl TryFrom<String> for OciDigest {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let digest = text.strip_prefix("sha256:").and_then(|hex| hex.parse().ok());
        let not =
            || format!("{:?} is no digest as sha256:…", text.chars().take(80).collect::<String>());
        digest.map(Self).ok_or_else(not)
    }
}

impl From<OciDigest> for String {
    fn from(digest: OciDigest) -> Self {
        digest.to_string()
    }
}

impl fmt::Display for OciDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.0)
    }
}

/// Names a blob.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Descriptor {
    /// What it is.
    pub media_type: String,
    /// Of its bytes.
    pub digest: OciDigest,
    /// How many they are.
    pub size: u64,
    /// Of a manifest in a list, what its artifact is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact_type: Option<String>,
    /// What else is said of it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

impl Descriptor {
    /// Of some content.
    pub fn of(media_type: &str, content: &[u8]) -> Self {
        Self::new(media_type, Digest::of(content), content.len() as u64)
    }

    /// Of content that is known by its digest.
    pub fn new(media_type: &str, digest: Digest, size: u64) -> Self {
        let (artifact_type, annotations) = (None, BTreeMap::new());
        let media_type = media_type.to_owned();
        Self { media_type, digest: OciDigest(digest), size, artifact_type, annotations }
    }
}

/// A manifest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ImageManifest {
    schema_version: u32,
    #[serde(default)]
    media_type: String,
    /// What it is a manifest of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact_type: Option<String>,
    /// What says more of it.
    pub config: Descriptor,
    /// Its content.
    pub layers: Vec<Descriptor>,
    /// What it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<Descriptor>,
}

impl ImageManifest {
    /// One of that kind.
    pub fn new(artifact_type: &str, config: Descriptor, layers: Vec<Descriptor>) -> Self {
        Self {
            schema_version: 2,
            media_type: MANIFEST_TYPE.to_owned(),
            artifact_type: Some(artifact_type.to_owned()),
            config,
            layers,
            subject: None,
        }
    }

    /// Reads one.
    ///
    /// # Errors
    /// What is wrong, as the end of a sentence.
    pub fn from_json(json: &[u8]) -> Result<Self, String> {
        let manifest: Self = serde_json::from_slice(json).map_err(|error| error.to_string())?;
        match (manifest.schema_version, manifest.media_type.as_str()) {
            (2, "" | MANIFEST_TYPE) => Ok(manifest),
            (2, other) => Err(format!("it is a {:?}", other.chars().take(80).collect::<String>())),
            (other, _) => Err(format!("it is a manifest of version {other}, not 2")),
        }
    }

    /// Writes it.
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("texts and numbers are JSON")
    }
}

/// A list of manifests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Index {
    schema_version: u32,
    #[serde(default)]
    media_type: String,
    /// Its manifests.
    pub manifests: Vec<Descriptor>,
}

impl Default for Index {
    fn default() -> Self {
        let (media_type, manifests) = (INDEX_TYPE.to_owned(), Vec::new());
        Self { schema_version: 2, media_type, manifests }
    }
}

impl Index {
    /// Reads one.
    ///
    /// # Errors
    /// What is wrong, as the end of a sentence.
    pub fn from_json(json: &[u8]) -> Result<Self, String> {
        let index: Self = serde_json::from_slice(json).map_err(|error| error.to_string())?;
        match (index.schema_version, index.media_type.as_str()) {
            (2, "" | INDEX_TYPE) => Ok(index),
            (2, other) => Err(format!("it is a {:?}", other.chars().take(80).collect::<String>())),
            (other, _) => Err(format!("it is a list of version {other}, not 2")),
        }
    }

    /// Writes it.
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("texts and numbers are JSON")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_read_as_they_were_written() {
        let config = Descriptor::of(EMPTY_TYPE, EMPTY);
        assert_eq!(
            config.digest.to_string(),
            "sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
        );
        let mut manifest =
            ImageManifest::new("application/x", config.clone(), vec![config.clone()]);
        manifest.subject = Some(config.clone());
        assert_eq!(ImageManifest::from_json(&manifest.to_json()).unwrap(), manifest);
        let index = Index { manifests: vec![config], ..Index::default() };
        assert_eq!(Index::from_json(&index.to_json()).unwrap(), index);
        // A list is no manifest, and a manifest no list.
        assert!(ImageManifest::from_json(&index.to_json()).is_err());
        assert!(Index::from_json(&manifest.to_json()).is_err());
    }

    #[test]
    fn what_others_add_is_passed_over_and_what_is_another_form_is_refused() {
        let text = r#"{"schemaVersion":2,"annotations":{"a":"b"},"config":{"mediaType":"x","size":2,"platform":{},
            "digest":"sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"},"layers":[]}"#;
        assert!(ImageManifest::from_json(text.as_bytes()).is_ok());
        for (from, to) in [
            (":2,", ":1,"),
            ("sha256:4", "sha512:4"),
            ("sha256:4", "sha256:../4"),
            (r#""size":2"#, r#""size":-2"#),
            (r#""layers":[]"#, r#""manifests":[]"#),
            (
                r#""config""#,
                r#""mediaType":"application/vnd.docker.distribution.manifest.v2+json","config""#,
            ),
        ] {
            assert!(text.contains(from), "{from}");
            assert!(ImageManifest::from_json(text.replace(from, to).as_bytes()).is_err(), "{to}");
        }
    }
}
