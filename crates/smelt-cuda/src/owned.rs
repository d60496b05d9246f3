//! Gives back what a driver gave when nobody holds it any more.
//!
//! What a driver says when something is given back is not heard: after it was lost all such calls fail, and nothing could be
//! done about any of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::driver::{
    CapturedGraph, Driver, DriverError, EventId, GraphExec, HostBytes, Module, Priority, Stream,
};
use crate::{DeviceAddress, Launch};

/// Bytes of page-locked memory that this program holds.
static LOCKED_BYTES: AtomicU64 = AtomicU64::new(0);

/// Bytes of the host's memory that this program holds page-locked; no library is asked.
pub fn locked_bytes() -> u64 {
    LOCKED_BYTES.load(Ordering::Relaxed)
}

/// Memory of the device.
#[derive(Debug)]
pub struct DeviceBuffer {
    driver: Arc<dyn Driver>,
    address: DeviceAddress,
    bytes: u64,
}

impl DeviceBuffer {
    /// Takes so much.
    ///
    /// # Errors
    /// As [`Driver::allocate`].
    pub fn new(driver: &Arc<dyn Driver>, bytes: u64) -> Result<Self, DriverError> {
        let address = driver.allocate(bytes)?;
        Ok(Self { driver: Arc::clone(driver), address, bytes })
    }

    /// Where it begins.
    pub const fn address(&self) -> DeviceAddress {
        self.address
    }

    /// How much it is.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        let _ = self.driver.free(self.address);
    }
}

/// Page-locked memory of the host that the device sees.
#[derive(Debug)]
pub struct HostBuffer {
    driver: Arc<dyn Driver>,
    address: DeviceAddress,
    bytes: u64,
}

impl HostBuffer {
    /// Takes so much.
    ///
    /// # Errors
    /// As [`Driver::allocate_host`].
    pub fn new(driver: &Arc<dyn Driver>, bytes: u64) -> Result<Self, DriverError> {
        let address = driver.allocate_host(bytes)?;
        LOCKED_BYTES.fetch_add(bytes, Ordering::Relaxed);
        Ok(Self { driver: Arc::clone(driver), address, bytes })
    }

    /// Where it begins, as the device sees it.
    pub const fn address(&self) -> DeviceAddress {
        self.address
    }

    /// How much it is.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Writes `bytes` from byte `at` on.
    ///
    /// # Errors
    /// As [`Driver::write_host`].
    pub fn write(&self, at: u64, bytes: &[u8]) -> Result<(), DriverError> {
        self.driver.write_host(self.address.offset(at), bytes)
    }

    /// Reads `bytes` from byte `at` on.
    ///
    /// # Errors
    /// As [`Driver::read_host`].
    pub fn read(&self, at: u64, bytes: &mut [u8]) -> Result<(), DriverError> {
        self.driver.read_host(self.address.offset(at), bytes)
    }
}

impl Drop for HostBuffer {
    fn drop(&mut self) {
        let _ = self.driver.free_host(self.address);
        LOCKED_BYTES.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Bytes of the host that the device reads where they lie.
#[derive(Debug)]
pub struct RegisteredBytes {
    driver: Arc<dyn Driver>,
    address: DeviceAddress,
}

impl RegisteredBytes {
    /// Registers `bytes`, which are held as long as this is.
    ///
    /// # Errors
    /// As [`Driver::register_host`].
    pub fn new(driver: &Arc<dyn Driver>, bytes: HostBytes) -> Result<Self, DriverError> {
        let address = driver.register_host(bytes)?;
        Ok(Self { driver: Arc::clone(driver), address })
    }

    /// Where they begin, as the device sees them.
    pub const fn address(&self) -> DeviceAddress {
        self.address
    }
}

impl Drop for RegisteredBytes {
    fn drop(&mut self) {
        let _ = self.driver.unregister_host(self.address);
    }
}

/// Addresses that are kept, and the memory that is behind a first part of them.
#[derive(Debug)]
pub struct Reservation {
    driver: Arc<dyn Driver>,
    address: DeviceAddress,
    bytes: u64,
    /// Bytes of each piece that is mapped, from the beginning on.
    pieces: Vec<u64>,
}

impl Reservation {
    /// Keeps addresses for `bytes`, rounded up to whole chunks.
    ///
    /// # Errors
    /// As [`Driver::reserve`].
    pub fn new(driver: &Arc<dyn Driver>, bytes: u64) -> Result<Self, DriverError> {
        let bytes = bytes.next_multiple_of(driver.chunk_bytes());
        let address = driver.reserve(bytes)?;
        Ok(Self { driver: Arc::clone(driver), address, bytes, pieces: Vec::new() })
    }

    /// Where it begins.
    pub const fn address(&self) -> DeviceAddress {
        self.address
    }

    /// Bytes of addresses that are kept.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes from the beginning on behind which there is memory.
    pub fn mapped_bytes(&self) -> u64 {
        self.pieces.iter().sum()
    }

    /// Puts one more piece of memory behind what has some.
    ///
    /// # Errors
    /// As [`Driver::map`], and where no addresses are left; what was mapped stays.
    pub fn grow(&mut self, bytes: u64) -> Result<(), DriverError> {
        let bytes = bytes.next_multiple_of(self.driver.chunk_bytes());
        let mapped = self.mapped_bytes();
        if mapped + bytes > self.bytes {
            return Err(DriverError::NoMemory { bytes });
        }
        self.driver.map(self.address.offset(mapped), bytes)?;
        self.pieces.push(bytes);
        Ok(())
    }

    /// Takes the last piece back; nothing where there is none.
    ///
    /// # Errors
    /// As [`Driver::unmap`]; the piece counts as taken back.
    pub fn shrink(&mut self) -> Result<(), DriverError> {
        let Some(bytes) = self.pieces.pop() else { return Ok(()) };
        self.driver.unmap(self.address.offset(self.mapped_bytes()), bytes)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        while !self.pieces.is_empty() {
            let _ = self.shrink();
        }
        let _ = self.driver.unreserve(self.address, self.bytes);
    }
}

/// A stream.
#[derive(Debug)]
pub struct OwnedStream {
    driver: Arc<dyn Driver>,
    stream: Stream,
}

impl OwnedStream {
    /// Makes one.
    ///
    /// # Errors
    /// As [`Driver::stream`].
    pub fn new(driver: &Arc<dyn Driver>, priority: Priority) -> Result<Self, DriverError> {
        let stream = driver.stream(priority)?;
        Ok(Self { driver: Arc::clone(driver), stream })
    }

    /// Its id.
    pub const fn id(&self) -> Stream {
        self.stream
    }

    /// Waits until all of its work is done.
    ///
    /// # Errors
    /// As [`Driver::synchronize`].
    pub fn synchronize(&self) -> Result<(), DriverError> {
        self.driver.synchronize(self.stream)
    }

    /// Captures what `put` puts on it, ready to be launched.
    ///
    /// # Errors
    /// That of `put`, or the driver's; the stream is as before.
    pub fn capture(
        &self,
        put: impl FnOnce(Stream) -> Result<(), DriverError>,
    ) -> Result<OwnedGraph, DriverError> {
        self.driver.begin_capture(self.stream)?;
        let did = put(self.stream);
        let graph = self.driver.end_capture(self.stream);
        let captured = graph.map(|graph| Captured { driver: Arc::clone(&self.driver), graph });
        did?;
        let captured = captured?;
        let exec = self.driver.instantiate(captured.graph)?;
        Ok(OwnedGraph { driver: Arc::clone(&self.driver), exec })
    }
}

impl Drop for OwnedStream {
    fn drop(&mut self) {
        let _ = self.driver.free_stream(self.stream);
    }
}

/// What was captured, until something is made of it.
struct Captured {
    driver: Arc<dyn Driver>,
    graph: CapturedGraph,
}

impl Drop for Captured {
    fn drop(&mut self) {
        let _ = self.driver.free_graph(self.graph);
    }
}

/// Captured work that can be launched.
#[derive(Debug)]
pub struct OwnedGraph {
    driver: Arc<dyn Driver>,
    exec: GraphExec,
}

impl OwnedGraph {
    /// Puts it on a stream.
    ///
    /// # Errors
    /// As [`Driver::launch_graph`].
    pub fn launch(&self, stream: Stream) -> Result<(), DriverError> {
        self.driver.launch_graph(stream, self.exec)
    }
}

impl Drop for OwnedGraph {
    fn drop(&mut self) {
        let _ = self.driver.free_exec(self.exec);
    }
}

/// A mark in a stream.
#[derive(Debug)]
pub struct OwnedEvent {
    driver: Arc<dyn Driver>,
    event: EventId,
}

impl OwnedEvent {
    /// Makes one.
    ///
    /// # Errors
    /// As [`Driver::event`].
    pub fn new(driver: &Arc<dyn Driver>) -> Result<Self, DriverError> {
        let event = driver.event()?;
        Ok(Self { driver: Arc::clone(driver), event })
    }

    /// Its id.
    pub const fn id(&self) -> EventId {
        self.event
    }
}

impl Drop for OwnedEvent {
    fn drop(&mut self) {
        let _ = self.driver.free_event(self.event);
    }
}

/// Kernels that are loaded.
#[derive(Debug)]
pub struct OwnedModule {
    driver: Arc<dyn Driver>,
    module: Module,
}

impl OwnedModule {
    /// Loads a cubin.
    ///
    /// # Errors
    /// As [`Driver::load_module`].
    pub fn new(driver: &Arc<dyn Driver>, image: &[u8]) -> Result<Self, DriverError> {
        let module = driver.load_module(image)?;
        Ok(Self { driver: Arc::clone(driver), module })
    }

    /// Its id.
    pub const fn id(&self) -> Module {
        self.module
    }

    /// Puts a launch of one of its kernels on a stream.
    ///
    /// # Errors
    /// As [`Driver::launch`].
    pub fn launch(&self, stream: Stream, launch: &Launch) -> Result<(), DriverError> {
        self.driver.launch(stream, self.module, launch)
    }
}

impl Drop for OwnedModule {
    fn drop(&mut self) {
        let _ = self.driver.unload_module(self.module);
    }
}
