//! Sends a delivery: what the place lacks of its layers, the manifest, the statement, and the tag last.
//!
//! So a tag never leads to what is not there or not signed.

use std::collections::HashSet;
use std::path::PathBuf;

use smelt_store::Digest;
use smelt_store::bundle::BundledOutput;

use super::artifact::{Artifact, Slice};
use super::document::{Descriptor, EMPTY, EMPTY_TYPE, ImageManifest, MANIFEST_TYPE};
use super::place::{Content, ENVELOPE_TYPE, Name, Place, PlaceError, STATEMENT_TYPE};
use crate::dsse::Envelope;

/// What became of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Of all its layers.
    pub bytes: u64,
    /// Of those that the place lacked.
    pub sent: u64,
}

/// Sends layers, config and manifest of an artifact, but for what the place has; `told` hears of bytes as they are there.
///
/// # Errors
/// If the place does not take them.
pub fn send(
    place: &Place,
    artifact: &Artifact,
    outputs: &[(BundledOutput, PathBuf)],
    told: &mut dyn FnMut(u64),
) -> Result<Sent, PlaceError> {
    let mut sent = Sent::default();
    let mut seen = HashSet::new();
    for slice in &artifact.slices {
        sent.bytes += slice.bytes;
        if seen.insert(slice.digest) && !place.has(slice.digest, slice.bytes)? {
            send_slice(place, slice, outputs)?;
            sent.sent += slice.bytes;
        }
        told(slice.bytes);
    }
    send_text(place, &artifact.config)?;
    let name = Name::Digest(Digest::of(&artifact.manifest));
    place.put_manifest(name, MANIFEST_TYPE, &artifact.manifest)?;
    Ok(sent)
}

fn send_slice(
    place: &Place,
    slice: &Slice,
    outputs: &[(BundledOutput, PathBuf)],
) -> Result<(), PlaceError> {
    let (output, folder) = &outputs[slice.output];
    let path = folder.join(&output.files.files()[slice.file].path);
    place.write(slice.digest, Content::Part { path: &path, at: slice.at, bytes: slice.bytes })
}

fn send_text(place: &Place, text: &[u8]) -> Result<(), PlaceError> {
    let digest = Digest::of(text);
    if place.has(digest, text.len() as u64)? {
        return Ok(());
    }
    place.write(digest, Content::Text(text))
}

/// Puts what is signed of a manifest beside it, where the place lists it itself or under a tag.
///
/// # Errors
/// If the place does not take it.
pub fn put_statement(
    place: &Place,
    manifest: &[u8],
    envelope: &Envelope,
) -> Result<(), PlaceError> {
    let what = "a statement of who vouches";
    let json = envelope.to_json().map_err(|error| place.wrong(what, error.to_string()))?;
    send_text(place, &json)?;
    send_text(place, EMPTY)?;
    let (config, layer) = (Descriptor::of(EMPTY_TYPE, EMPTY), Descriptor::of(ENVELOPE_TYPE, &json));
    let mut statement = ImageManifest::new(STATEMENT_TYPE, config, vec![layer]);
    statement.subject = Some(Descriptor::of(MANIFEST_TYPE, manifest));
    let text = statement.to_json();
    let is_listed = place.put_manifest(Name::Digest(Digest::of(&text)), MANIFEST_TYPE, &text)?;
    if is_listed {
        return Ok(());
    }
    let mut listed = Descriptor::of(MANIFEST_TYPE, &text);
    listed.artifact_type = Some(STATEMENT_TYPE.to_owned());
    place.list_statement(Digest::of(manifest), listed)
}

/// Has a tag lead to a manifest that is there.
///
/// # Errors
/// If the place does not take it.
pub fn put_tag(place: &Place, tag: &str, manifest: &[u8]) -> Result<(), PlaceError> {
    place.put_manifest(Name::Tag(tag), MANIFEST_TYPE, manifest).map(drop)
}
