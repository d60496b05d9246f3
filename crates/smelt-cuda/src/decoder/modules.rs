//! Loads the kernels of an engine, and says which of them a launch runs.
//!
//! Kernels that write or read keys and values depend on how those are kept, so an engine may have them twice.

use std::sync::Arc;

use smelt_backend::KvType;

use super::file::DecoderDir;
use crate::driver::{Driver, DriverError, Stream};
use crate::owned::OwnedModule;
use crate::{Function, Launch};

/// Kernels that keep keys and values, or read them.
const OF_PAGES: [Function; 4] = [
    Function("rotate_and_keep"),
    Function("attend_prompt"),
    Function("attend_pages"),
    Function("attend_together"),
];

/// The kernels of an engine.
#[derive(Debug)]
pub(super) struct Modules {
    all: OwnedModule,
    /// Those of [`OF_PAGES`], where keys and values are kept as bytes.
    of_bytes: Option<OwnedModule>,
}

impl Modules {
    /// Loads the kernels of `dir` for keys and values of `kind`.
    ///
    /// # Errors
    /// [`DriverError`] where a cubin is not for this card.
    pub(super) fn load(
        driver: &Arc<dyn Driver>,
        dir: &DecoderDir,
        kind: KvType,
    ) -> Result<Self, DriverError> {
        let all = OwnedModule::new(driver, &dir.kernels)?;
        let int8 = dir.kernels_int8.as_ref().filter(|_| kind == KvType::Int8);
        let of_bytes = int8.map(|image| OwnedModule::new(driver, image)).transpose()?;
        Ok(Self { all, of_bytes })
    }

    /// Puts a launch on a stream.
    ///
    /// # Errors
    /// [`DriverError`].
    pub(super) fn launch(&self, stream: Stream, launch: &Launch) -> Result<(), DriverError> {
        let of_pages = self.of_bytes.as_ref().filter(|_| OF_PAGES.contains(&launch.function));
        of_pages.unwrap_or(&self.all).launch(stream, launch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::page::HeadShape;
    use crate::kernels::source::{KernelSet, source};

    #[test]
    fn kernels_that_know_how_pages_lie_are_those_of_the_list() {
        let text =
            |kind| source(&KernelSet { forms: Vec::new(), head: HeadShape { dim: 64, kind } });
        let both = [text(KvType::F16), text(KvType::Int8)];
        assert_ne!(both[0], both[1]);
        for Function(name) in OF_PAGES {
            assert!(both[0].contains(&format!(" {name}(")), "{name} is no kernel");
        }
        // Whatever is told apart by `KV_BYTES` is in one of them, or in a function that only they call.
        // Macros have no body, and what comes behind them is another's.
        let named = both[0].split("KERNEL ").skip(1);
        for kernel in named.filter(|kernel| !kernel.contains(" NAME(")) {
            let body = kernel.split("\n}\n").next().unwrap_or_default();
            let is_listed =
                OF_PAGES.iter().any(|Function(name)| body.contains(&format!(" {name}(")));
            let words = ["KV_BYTES", "head_of(", "copy_p", "Pages pages"];
            let knows = words.iter().any(|word| body.contains(word));
            assert_eq!(knows, is_listed, "{}", body.lines().next().unwrap_or_default());
        }
    }
}
