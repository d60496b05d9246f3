//! Says what a driver of a device does: memory, modules, launches, streams, events, graphs of launches.
//!
//! Words and meaning are those of CUDA's driver.  Whatever is made has an id and lives until it is freed by it; the
//! wrappers of [`crate::owned`] do that when they are dropped.  Work is put on a [`Stream`] and done in its order; nothing
//! else is ordered but by an [`EventId`].

#[cfg_attr(target_env = "musl", path = "driver/static_cuda.rs")]
mod cuda;
mod error;
mod library;
mod mapped;
#[cfg(not(target_env = "musl"))]
mod status;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub use cuda::{cards, held_bytes, open};
pub use error::DriverError;
pub use library::{NoCard, VARIABLE};
pub use mapped::map_file;

use crate::{CardFacts, DeviceAddress, Launch};

/// A queue of work; its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stream(pub u64);

/// A mark in a stream; its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventId(pub u64);

/// Kernels that are loaded; the id of their image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Module(pub u64);

/// Work that was captured and not done; its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CapturedGraph(pub u64);

/// Captured work that can be launched at once, again and again; its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GraphExec(pub u64);

/// Which stream's work goes first where both have some.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Priority {
    /// Before others: decoding.
    High,
    /// Where others leave room: vision.
    #[default]
    Low,
}

/// Memory of a device at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryInfo {
    /// Bytes that nobody holds.
    pub free_bytes: u64,
    /// Bytes of all of it.
    pub total_bytes: u64,
}

/// Bytes of the host that a device may read as long as they are registered: a mapped file, for one.
pub type HostBytes = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// A device that does work.
///
/// Every call may fail by [`DriverError`].  After one that [`DriverError::is_sticky`] all others fail as well, and what was
/// made counts as freed once its free call was made: only another driver, opened anew, goes on.
///
/// Between [`Self::begin_capture`] and [`Self::end_capture`] only work is put on streams, by the stream that is captured
/// alone; memory is neither taken, freed nor waited for.
pub trait Driver: fmt::Debug + Send + Sync {
    /// What is true of its card.
    fn card(&self) -> &CardFacts;

    /// Memory of the device at this moment.
    ///
    /// # Errors
    /// [`DriverError`]; so for every call.
    fn memory_info(&self) -> Result<MemoryInfo, DriverError>;

    /// Bytes of the device's memory that this program holds, by whichever driver of the card: what was allocated or mapped,
    /// and not given back.  What the driver itself takes is not among them.
    fn held_bytes(&self) -> u64;

    /// Takes `bytes` of the device's memory, aligned to 256 bytes; what they hold is anything.
    ///
    /// # Errors
    /// [`DriverError::NoMemory`] where there are not so many.
    fn allocate(&self, bytes: u64) -> Result<DeviceAddress, DriverError>;

    /// Gives back what [`Self::allocate`] gave.  No work that names it may be left.
    ///
    /// # Errors
    /// [`DriverError`].
    fn free(&self, address: DeviceAddress) -> Result<(), DriverError>;

    /// Keeps a range of addresses for [`Self::map`]; no memory is taken.  `bytes` is a multiple of
    /// [`Self::chunk_bytes`].
    ///
    /// # Errors
    /// [`DriverError`].
    fn reserve(&self, bytes: u64) -> Result<DeviceAddress, DriverError>;

    /// Gives back a range that [`Self::reserve`] gave, in which nothing is mapped any more.
    ///
    /// # Errors
    /// [`DriverError`].
    fn unreserve(&self, address: DeviceAddress, bytes: u64) -> Result<(), DriverError>;

    /// Bytes of which pieces that are mapped are multiples.
    fn chunk_bytes(&self) -> u64;

    /// Puts memory behind a part of a reserved range.
    ///
    /// # Errors
    /// [`DriverError::NoMemory`] where there is not so much.
    fn map(&self, address: DeviceAddress, bytes: u64) -> Result<(), DriverError>;

    /// Takes the memory back that one [`Self::map`] put there.  No work that names it may be left.
    ///
    /// # Errors
    /// [`DriverError`].
    fn unmap(&self, address: DeviceAddress, bytes: u64) -> Result<(), DriverError>;

    /// Takes `bytes` of page-locked memory of the host, which the device sees by the address that is given.
    ///
    /// # Errors
    /// [`DriverError::NoMemory`] where there are not so many.
    fn allocate_host(&self, bytes: u64) -> Result<DeviceAddress, DriverError>;

    /// Gives back what [`Self::allocate_host`] gave.  No work that names it may be left.
    ///
    /// # Errors
    /// [`DriverError`].
    fn free_host(&self, address: DeviceAddress) -> Result<(), DriverError>;

    /// Writes page-locked memory at once, by the host.  No work that reads or writes it may be left.
    ///
    /// # Errors
    /// [`DriverError::Refused`] where `to` is no such memory.
    fn write_host(&self, to: DeviceAddress, bytes: &[u8]) -> Result<(), DriverError>;

    /// Reads page-locked memory at once, by the host.  No work that writes it may be left.
    ///
    /// # Errors
    /// [`DriverError::Refused`] where `from` is no such memory.
    fn read_host(&self, from: DeviceAddress, bytes: &mut [u8]) -> Result<(), DriverError>;

    /// Lets the device read bytes of the host where they lie, until [`Self::unregister_host`]; they are held as long, and
    /// begin at a page.
    ///
    /// # Errors
    /// [`DriverError::Refused`] where the device cannot.
    fn register_host(&self, bytes: HostBytes) -> Result<DeviceAddress, DriverError>;

    /// Ends that.  No work that names them may be left.
    ///
    /// # Errors
    /// [`DriverError`].
    fn unregister_host(&self, address: DeviceAddress) -> Result<(), DriverError>;

    /// Copies bytes of the host to the device, and waits until it is done.
    ///
    /// # Errors
    /// [`DriverError`].
    fn copy_to_device(
        &self,
        stream: Stream,
        to: DeviceAddress,
        bytes: &[u8],
    ) -> Result<(), DriverError>;

    /// Copies from the device to bytes of the host, and waits until it is done.
    ///
    /// # Errors
    /// [`DriverError`].
    fn copy_to_host(
        &self,
        stream: Stream,
        bytes: &mut [u8],
        from: DeviceAddress,
    ) -> Result<(), DriverError>;

    /// Puts a copy between two places that the device sees on the stream.
    ///
    /// # Errors
    /// [`DriverError`].
    fn copy(
        &self,
        stream: Stream,
        to: DeviceAddress,
        from: DeviceAddress,
        bytes: u64,
    ) -> Result<(), DriverError>;

    /// Puts on the stream that `bytes` bytes become `byte`.
    ///
    /// # Errors
    /// [`DriverError`].
    fn memset(
        &self,
        stream: Stream,
        to: DeviceAddress,
        byte: u8,
        bytes: u64,
    ) -> Result<(), DriverError>;

    /// Loads the kernels of a cubin.
    ///
    /// # Errors
    /// [`DriverError::NoImage`] where it is not for this card, or none.
    fn load_module(&self, image: &[u8]) -> Result<Module, DriverError>;

    /// Forgets them.  No work that names them may be left.
    ///
    /// # Errors
    /// [`DriverError`].
    fn unload_module(&self, module: Module) -> Result<(), DriverError>;

    /// Puts a launch of one of a module's kernels on the stream.
    ///
    /// # Errors
    /// [`DriverError::LaunchRefused`] where the module has no such kernel, or it cannot run so.
    fn launch(&self, stream: Stream, module: Module, launch: &Launch) -> Result<(), DriverError>;

    /// Makes a stream.
    ///
    /// # Errors
    /// [`DriverError`].
    fn stream(&self, priority: Priority) -> Result<Stream, DriverError>;

    /// Forgets a stream, on which no work is left.
    ///
    /// # Errors
    /// [`DriverError`].
    fn free_stream(&self, stream: Stream) -> Result<(), DriverError>;

    /// Waits until all work of the stream is done.
    ///
    /// # Errors
    /// [`DriverError`], also of work that was put there earlier.
    fn synchronize(&self, stream: Stream) -> Result<(), DriverError>;

    /// Makes a mark, which nothing has passed yet.
    ///
    /// # Errors
    /// [`DriverError`].
    fn event(&self) -> Result<EventId, DriverError>;

    /// Forgets a mark.
    ///
    /// # Errors
    /// [`DriverError`].
    fn free_event(&self, event: EventId) -> Result<(), DriverError>;

    /// Puts a mark behind the work that is on the stream.
    ///
    /// # Errors
    /// [`DriverError`].
    fn record(&self, event: EventId, stream: Stream) -> Result<(), DriverError>;

    /// Lets work that is put on the stream from now on wait until the mark is passed.
    ///
    /// # Errors
    /// [`DriverError`].
    fn wait(&self, stream: Stream, event: EventId) -> Result<(), DriverError>;

    /// Whether a mark is passed; one that was never recorded is.
    ///
    /// # Errors
    /// [`DriverError`], also of work before the mark.
    fn query(&self, event: EventId) -> Result<bool, DriverError>;

    /// Waits until a mark is passed.
    ///
    /// # Errors
    /// [`DriverError`], also of work before the mark.
    fn synchronize_event(&self, event: EventId) -> Result<(), DriverError>;

    /// The time between two marks that are passed.
    ///
    /// # Errors
    /// [`DriverError`].
    fn elapsed(&self, from: EventId, to: EventId) -> Result<Duration, DriverError>;

    /// Lets what is put on the stream from now on be written down and not done.
    ///
    /// # Errors
    /// [`DriverError`].
    fn begin_capture(&self, stream: Stream) -> Result<(), DriverError>;

    /// Ends that.  After an error nothing is captured, and the stream works as before.
    ///
    /// # Errors
    /// [`DriverError`].
    fn end_capture(&self, stream: Stream) -> Result<CapturedGraph, DriverError>;

    /// Forgets what was captured; what was made of it stays.
    ///
    /// # Errors
    /// [`DriverError`].
    fn free_graph(&self, graph: CapturedGraph) -> Result<(), DriverError>;

    /// Makes captured work ready to be launched.
    ///
    /// # Errors
    /// [`DriverError`].
    fn instantiate(&self, graph: CapturedGraph) -> Result<GraphExec, DriverError>;

    /// Forgets work that can be launched.  None of it may be left on a stream.
    ///
    /// # Errors
    /// [`DriverError`].
    fn free_exec(&self, exec: GraphExec) -> Result<(), DriverError>;

    /// Puts captured work on the stream.
    ///
    /// # Errors
    /// [`DriverError`].
    fn launch_graph(&self, stream: Stream, exec: GraphExec) -> Result<(), DriverError>;
}
