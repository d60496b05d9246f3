//! Asks NVIDIA's driver, whose library is loaded when it is asked for first.
//!
//! Ids are numbers of our own: what callers hold is looked up, so that no number that they make up reaches the library as a
//! pointer.  Memory of the host is copied to and from only where the library has been waited for, or where it is page-locked
//! and ours.  A kernel is trusted as any code of ours is.

#![allow(unsafe_code)]

use std::collections::{BTreeMap, HashMap};
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use cudarc::driver::sys;
use sys::CUdevice_attribute_enum as Asked;

use super::library::{NAME, candidates};
use super::status::{self, Tried};
use super::{
    CapturedGraph, Driver, DriverError, EventId, GraphExec, HostBytes, MemoryInfo, Module, NoCard,
    Priority, Stream,
};
use crate::cubin::{self, Cubin, KernelFacts, NotACubin};
use crate::{CardFacts, DeviceAddress, Function, Launch, Sm};

/// The oldest CUDA whose drivers have every call that is made here.
const DRIVER_MIN: u32 = 12_000;

/// Shared memory that a kernel may have without being told so, what it declares included.
const SHARED_BYTES_UNTOLD: u32 = 48 << 10;

/// The cards of this machine.
///
/// # Errors
/// [`NoCard`] when there is no driver, or it does not work; none at all where it finds no card.
pub fn cards() -> Result<Vec<CardFacts>, NoCard> {
    let library = load()?;
    (0..library.count()?).map(|ordinal| library.card(ordinal)).collect()
}

/// Opens a card in a context of its own.
///
/// # Errors
/// [`NoCard`] when there is none of this number, or it does not open.
pub fn open(ordinal: u32) -> Result<Arc<dyn Driver>, NoCard> {
    let library = load()?;
    let count = library.count()?;
    if ordinal >= count {
        return Err(NoCard::NoSuchCard { count, ordinal });
    }
    Ok(Arc::new(CudaDriver::new(library.card(ordinal)?)?))
}

/// The library, once it is loaded.
#[derive(Clone, Copy, Debug)]
struct Library {
    /// The newest CUDA that the driver knows.
    driver: u32,
}

/// Loads the library; later calls find it loaded, and one that is not there may come later.
fn load() -> Result<Library, NoCard> {
    static LOADED: OnceLock<Library> = OnceLock::new();
    if let Some(library) = LOADED.get() {
        return Ok(*library);
    }
    let mut refused = NoCard::NoLibrary;
    for path in candidates()? {
        // SAFETY: loading runs the library's own beginnings; it is NVIDIA's driver by its name, or what the user named.
        match unsafe { libloading::Library::new(&path) } {
            Ok(library) => {
                // The bindings load it again by its name, which gives the same one, and it is never unloaded.
                mem::forget(library);
                let library = begin(&path.to_string_lossy())?;
                return Ok(*LOADED.get_or_init(|| library));
            }
            Err(error) if path.is_file() => {
                let problem = error.to_string().replace('\n', "; ");
                refused = NoCard::Unfit { library: path.display().to_string(), problem };
            }
            Err(_) => {}
        }
    }
    Err(refused)
}

/// Begins to use the library.
fn begin(library: &str) -> Result<Library, NoCard> {
    let unfit = |problem: String| NoCard::Unfit { library: library.to_owned(), problem };
    // SAFETY: it only asks the loader, which has the library by now.
    if !unsafe { sys::is_culib_present() } {
        return Err(unfit("it does not call itself libcuda.so.1".to_owned()));
    }
    let mut driver: c_int = 0;
    // SAFETY: the pointer is to a live number; this call needs no beginning.
    let told = unsafe { sys::cuDriverGetVersion(&raw mut driver) };
    told_as(told).map_err(unfit)?;
    let driver = driver.cast_unsigned();
    if driver < DRIVER_MIN {
        let knows = format!("{}.{}", driver / 1000, driver % 1000 / 10);
        return Err(unfit(format!("its driver knows CUDA {knows} at most, and 12.0 is needed")));
    }
    // SAFETY: no pointers; it may be called again and from any thread.
    match unsafe { sys::cuInit(0) } as u32 {
        status::SUCCESS | status::NO_DEVICE => Ok(Library { driver }),
        status => Err(unfit(describe(status))),
    }
}

impl Library {
    fn count(self) -> Result<u32, NoCard> {
        let mut count: c_int = 0;
        // SAFETY: the pointer is to a live number.
        let told = unsafe { sys::cuDeviceGetCount(&raw mut count) };
        // Where there is no card the library has not begun.
        Ok(told_as(told).map_or(0, |()| count.cast_unsigned()))
    }

    fn card(self, ordinal: u32) -> Result<CardFacts, NoCard> {
        let unfit = |problem| NoCard::Unfit { library: NAME.to_owned(), problem };
        let device = device(ordinal).map_err(unfit)?;
        let ask = |attribute| attribute_of(device, attribute).map_err(unfit);
        let major = ask(Asked::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = ask(Asked::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        Ok(CardFacts {
            ordinal,
            name: name_of(device).map_err(unfit)?,
            sm: Sm(major * 10 + minor),
            multiprocessors: ask(Asked::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            memory_bytes: memory_of(device).map_err(unfit)?,
            unified: ask(Asked::CU_DEVICE_ATTRIBUTE_INTEGRATED)? != 0,
            shared_bytes_max: ask(Asked::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
            l2_bytes: ask(Asked::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?.into(),
            driver: self.driver,
        })
    }
}

/// Whether a call did what it was asked, or what the driver says of it.
fn told_as(result: sys::CUresult) -> Result<(), String> {
    match result as u32 {
        status::SUCCESS => Ok(()),
        status => Err(describe(status)),
    }
}

/// What the driver says of a status.
fn describe(status: u32) -> String {
    let mut text: *const c_char = ptr::null();
    // SAFETY: `status` came from the library as such a value, and the pointer is to a live one.
    let told = unsafe {
        let result: sys::CUresult = mem::transmute(status);
        sys::cuGetErrorString(result, &raw mut text)
    };
    if told as u32 != status::SUCCESS || text.is_null() {
        return format!("status {status}");
    }
    // SAFETY: the library gives texts that live as long as it does.
    let text = unsafe { CStr::from_ptr(text) };
    format!("{} (status {status})", text.to_string_lossy().replace('\n', " "))
}

fn device(ordinal: u32) -> Result<sys::CUdevice, String> {
    let mut device: sys::CUdevice = 0;
    // SAFETY: the pointer is to a live number.
    told_as(unsafe { sys::cuDeviceGet(&raw mut device, ordinal.cast_signed()) })?;
    Ok(device)
}

fn attribute_of(device: sys::CUdevice, asked: sys::CUdevice_attribute) -> Result<u32, String> {
    let mut value: c_int = 0;
    // SAFETY: the pointer is to a live number.
    told_as(unsafe { sys::cuDeviceGetAttribute(&raw mut value, asked, device) })?;
    u32::try_from(value).map_err(|_| format!("a device's fact is {value}"))
}

fn name_of(device: sys::CUdevice) -> Result<String, String> {
    let mut name = [0_u8; 128];
    // SAFETY: the length is that of the array behind the pointer.
    let told = unsafe {
        sys::cuDeviceGetName(name.as_mut_ptr().cast::<c_char>(), name.len() as c_int, device)
    };
    told_as(told)?;
    let text = CStr::from_bytes_until_nul(&name).map_err(|error| error.to_string())?;
    Ok(text.to_string_lossy().into_owned())
}

fn memory_of(device: sys::CUdevice) -> Result<u64, String> {
    let mut bytes: usize = 0;
    // SAFETY: the pointer is to a live number.
    told_as(unsafe { sys::cuDeviceTotalMem_v2(&raw mut bytes, device) })?;
    Ok(bytes as u64)
}

/// A pointer of the library's, as a number: who holds it may be any thread, as the library allows.
type Raw = usize;

/// What was made and not given back, by the ids that callers hold.
#[derive(Debug, Default)]
struct Made {
    last: u64,
    handles: HashMap<u64, Raw>,
    /// What modules say of their kernels.
    cubins: HashMap<u64, Cubin>,
    /// Kernels that were found, and the shared memory that they were told to have.
    kernels: HashMap<(u64, Function), (Raw, u32)>,
    pieces: BTreeMap<u64, Piece>,
    /// Bytes of the device in them.
    device_bytes: u64,
}

/// Cards that are told apart; a host has sixteen at the most.
const CARDS_TOLD: usize = 64;

/// Bytes of each card that drivers of this program hold.
static HELD_BYTES: [AtomicU64; CARDS_TOLD] = [const { AtomicU64::new(0) }; CARDS_TOLD];

fn held(ordinal: u32) -> &'static AtomicU64 {
    &HELD_BYTES[ordinal as usize % CARDS_TOLD]
}

/// Bytes of the `ordinal`th card that this program holds; no library is asked.
pub fn held_bytes(ordinal: u32) -> u64 {
    held(ordinal).load(Ordering::Relaxed)
}

/// Memory that may be copied.
struct Piece {
    bytes: u64,
    kind: Kind,
}

enum Kind {
    Device,
    /// Where the host sees it.
    Host(Raw),
    Registered(HostBytes),
    Reserved,
}

impl std::fmt::Debug for Piece {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes", self.bytes)
    }
}

impl Made {
    fn add(&mut self, raw: Raw) -> u64 {
        self.last += 1;
        self.handles.insert(self.last, raw);
        self.last
    }

    /// The piece that holds all of these bytes, and where it begins.
    fn around(&self, at: DeviceAddress, bytes: u64) -> Option<(u64, &Piece)> {
        let (&base, piece) = self.pieces.range(..=at.0).next_back()?;
        let end = at.0.checked_add(bytes)?;
        (end <= base + piece.bytes).then_some((base, piece))
    }
}

/// A card that was opened.
#[derive(Debug)]
struct CudaDriver {
    card: CardFacts,
    device: sys::CUdevice,
    context: Raw,
    chunk_bytes: u64,
    made: Mutex<Made>,
}

impl CudaDriver {
    fn new(card: CardFacts) -> Result<Self, NoCard> {
        let unfit = |problem| NoCard::Unfit { library: NAME.to_owned(), problem };
        let device = device(card.ordinal).map_err(unfit)?;
        let mut context: sys::CUcontext = ptr::null_mut();
        // SAFETY: the pointer is to a live one; the context becomes this thread's and is ended by `drop`.
        told_as(unsafe { sys::cuCtxCreate_v2(&raw mut context, 0, device) }).map_err(unfit)?;
        let mut driver =
            Self { card, device, context: context as Raw, chunk_bytes: 0, made: Mutex::default() };
        let chunk = driver.granularity();
        driver.chunk_bytes = chunk.map_err(|error| unfit(error.to_string()))?;
        Ok(driver)
    }

    fn made(&self) -> MutexGuard<'_, Made> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes this thread's calls go to our context.
    fn enter(&self) -> Result<(), DriverError> {
        // SAFETY: the context lives as long as this value.
        let result = unsafe { sys::cuCtxSetCurrent(self.context as sys::CUcontext) };
        check(result, Tried::Call("enter"))
    }

    fn took(&self, bytes: u64) {
        self.made().device_bytes += bytes;
        held(self.card.ordinal).fetch_add(bytes, Ordering::Relaxed);
    }

    fn gave_back(&self, bytes: u64) {
        self.made().device_bytes -= bytes;
        held(self.card.ordinal).fetch_sub(bytes, Ordering::Relaxed);
    }

    fn raw(&self, id: u64, call: &'static str) -> Result<Raw, DriverError> {
        self.made().handles.get(&id).copied().ok_or_else(|| gone(call))
    }

    fn stream_of(&self, stream: Stream, call: &'static str) -> Result<sys::CUstream, DriverError> {
        Ok(self.raw(stream.0, call)? as sys::CUstream)
    }

    fn event_of(&self, event: EventId, call: &'static str) -> Result<sys::CUevent, DriverError> {
        Ok(self.raw(event.0, call)? as sys::CUevent)
    }

    /// Takes an id out of those that are known.
    fn take(&self, id: u64, call: &'static str) -> Result<Raw, DriverError> {
        self.made().handles.remove(&id).ok_or_else(|| gone(call))
    }

    fn take_piece(
        &self,
        address: DeviceAddress,
        is_kind: impl Fn(&Kind) -> bool,
        call: &'static str,
    ) -> Result<Piece, DriverError> {
        let mut made = self.made();
        match made.pieces.get(&address.0) {
            Some(piece) if is_kind(&piece.kind) => {}
            _ => return Err(gone(call)),
        }
        made.pieces.remove(&address.0).ok_or_else(|| gone(call))
    }

    fn add_piece(&self, at: u64, bytes: u64, kind: Kind) -> DeviceAddress {
        self.made().pieces.insert(at, Piece { bytes, kind });
        DeviceAddress(at)
    }

    /// Whether these bytes are some that were taken.
    fn within(&self, at: DeviceAddress, bytes: u64, call: &'static str) -> Result<(), DriverError> {
        let is_within = self.made().around(at, bytes).is_some();
        is_within.then_some(()).ok_or_else(|| outside(call))
    }

    /// Where the host sees page-locked memory.
    fn host(
        &self,
        at: DeviceAddress,
        bytes: usize,
        call: &'static str,
    ) -> Result<*mut u8, DriverError> {
        let made = self.made();
        match made.around(at, bytes as u64) {
            Some((base, Piece { kind: Kind::Host(raw), .. })) => {
                Ok((*raw + (at.0 - base) as usize) as *mut u8)
            }
            _ => Err(outside(call)),
        }
    }

    fn allocation(&self) -> sys::CUmemAllocationProp {
        // SAFETY: numbers and a pointer, for all of which zero is a value.
        let mut wanted: sys::CUmemAllocationProp = unsafe { mem::zeroed() };
        wanted.type_ = sys::CUmemAllocationType_enum::CU_MEM_ALLOCATION_TYPE_PINNED;
        wanted.location = self.location();
        wanted
    }

    fn location(&self) -> sys::CUmemLocation {
        let on_device = sys::CUmemLocationType_enum::CU_MEM_LOCATION_TYPE_DEVICE;
        sys::CUmemLocation { type_: on_device, id: self.device }
    }

    fn granularity(&self) -> Result<u64, DriverError> {
        let (mut bytes, wanted) = (0_usize, self.allocation());
        let asked =
            sys::CUmemAllocationGranularity_flags_enum::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED;
        // SAFETY: both pointers are to live values.
        let result =
            unsafe { sys::cuMemGetAllocationGranularity(&raw mut bytes, &raw const wanted, asked) };
        check(result, Tried::Call("chunk_bytes"))?;
        Ok((bytes as u64).max(1))
    }

    /// Lets the device use what was mapped.
    fn allow(&self, address: DeviceAddress, bytes: u64) -> sys::CUresult {
        let flags = sys::CUmemAccess_flags_enum::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        let access = sys::CUmemAccessDesc { location: self.location(), flags };
        // SAFETY: the pointer is to one live value, as the count says.
        unsafe { sys::cuMemSetAccess(address.0, bytes as usize, &raw const access, 1) }
    }

    /// The kernel of a module, told to have as much shared memory as the launch asks for.
    fn kernel(&self, module: Module, launch: &Launch) -> Result<sys::CUfunction, DriverError> {
        let function = launch.function;
        let tried = Tried::Launch(function);
        let mut made = self.made();
        let raw = *made.handles.get(&module.0).ok_or_else(|| gone("launch"))?;
        let facts = takes(made.cubins.get(&module.0), launch)?;
        let (kernel, told) = match made.kernels.get(&(module.0, function)) {
            Some(known) => *known,
            None => (find(raw, function)?, SHARED_BYTES_UNTOLD.saturating_sub(facts.shared_bytes)),
        };
        if launch.shared_bytes > told {
            let asked =
                sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            let bytes = launch.shared_bytes.cast_signed();
            // SAFETY: the function is of a module that is loaded, which the lock keeps so.
            let result =
                unsafe { sys::cuFuncSetAttribute(kernel as sys::CUfunction, asked, bytes) };
            check(result, tried)?;
        }
        let told = told.max(launch.shared_bytes);
        made.kernels.insert((module.0, function), (kernel, told));
        Ok(kernel as sys::CUfunction)
    }
}

/// The kernel of a launch, if the module has it and it takes parameters of so many bytes: the library reads as many as it
/// takes.
fn takes(cubin: Option<&Cubin>, launch: &Launch) -> Result<KernelFacts, DriverError> {
    let function = launch.function;
    let refused = |problem| DriverError::LaunchRefused { function, problem };
    let kernel = cubin.and_then(|cubin| cubin.kernels.get(function.0)).copied();
    let kernel =
        kernel.ok_or_else(|| refused("these kernels have none of that name".to_owned()))?;
    let (takes, given) = (kernel.parameter_bytes as usize, launch.args.packed().len());
    let problem = || format!("it takes {takes} bytes of parameters, and {given} were given");
    (takes == given).then_some(kernel).ok_or_else(|| refused(problem()))
}

/// A kernel of a module.
fn find(module: Raw, function: Function) -> Result<Raw, DriverError> {
    let none =
        |_| DriverError::LaunchRefused { function, problem: "its name holds a zero".to_owned() };
    let name = CString::new(function.0).map_err(none)?;
    let mut found: sys::CUfunction = ptr::null_mut();
    // SAFETY: the module is loaded, the name ends by zero, the pointer is to a live one.
    let result =
        unsafe { sys::cuModuleGetFunction(&raw mut found, module as sys::CUmodule, name.as_ptr()) };
    check(result, Tried::Launch(function))?;
    Ok(found as Raw)
}

fn check(result: sys::CUresult, tried: Tried) -> Result<(), DriverError> {
    match result as u32 {
        status::SUCCESS => Ok(()),
        status => Err(status::error(status, describe(status), tried)),
    }
}

fn gone(call: &'static str) -> DriverError {
    let problem = "what it names was given back, or never given".to_owned();
    DriverError::Refused { call, problem }
}

fn outside(call: &'static str) -> DriverError {
    DriverError::Refused { call, problem: "it names memory that was not taken".to_owned() }
}

impl Drop for CudaDriver {
    fn drop(&mut self) {
        // SAFETY: the context was made by `new`, and nothing of this value uses it any more.  It takes all that was made in
        // it along; registered memory is let go after.
        let _ = unsafe { sys::cuCtxDestroy_v2(self.context as sys::CUcontext) };
        let left = self.made().device_bytes;
        self.gave_back(left);
    }
}

impl Driver for CudaDriver {
    fn card(&self) -> &CardFacts {
        &self.card
    }

    fn memory_info(&self) -> Result<MemoryInfo, DriverError> {
        self.enter()?;
        let (mut free, mut total) = (0_usize, 0_usize);
        // SAFETY: both pointers are to live numbers.
        let result = unsafe { sys::cuMemGetInfo_v2(&raw mut free, &raw mut total) };
        check(result, Tried::Call("memory_info"))?;
        Ok(MemoryInfo { free_bytes: free as u64, total_bytes: total as u64 })
    }

    fn held_bytes(&self) -> u64 {
        held_bytes(self.card.ordinal)
    }

    fn allocate(&self, bytes: u64) -> Result<DeviceAddress, DriverError> {
        self.enter()?;
        let mut at: sys::CUdeviceptr = 0;
        // SAFETY: the pointer is to a live number.
        let result = unsafe { sys::cuMemAlloc_v2(&raw mut at, bytes as usize) };
        check(result, Tried::Memory("allocate", bytes))?;
        self.took(bytes);
        Ok(self.add_piece(at, bytes, Kind::Device))
    }

    fn free(&self, address: DeviceAddress) -> Result<(), DriverError> {
        let piece = self.take_piece(address, |kind| matches!(kind, Kind::Device), "free")?;
        self.gave_back(piece.bytes);
        self.enter()?;
        // SAFETY: it was given by `cuMemAlloc` and not given back before.
        check(unsafe { sys::cuMemFree_v2(address.0) }, Tried::Call("free"))
    }

    fn reserve(&self, bytes: u64) -> Result<DeviceAddress, DriverError> {
        self.enter()?;
        let mut at: sys::CUdeviceptr = 0;
        // SAFETY: the pointer is to a live number.
        let result = unsafe { sys::cuMemAddressReserve(&raw mut at, bytes as usize, 0, 0, 0) };
        check(result, Tried::Memory("reserve", bytes))?;
        Ok(self.add_piece(at, bytes, Kind::Reserved))
    }

    fn unreserve(&self, address: DeviceAddress, _bytes: u64) -> Result<(), DriverError> {
        let kept = self.take_piece(address, |kind| matches!(kind, Kind::Reserved), "unreserve")?;
        self.enter()?;
        // SAFETY: the range was reserved as a whole, and is not any more after this.
        let result = unsafe { sys::cuMemAddressFree(address.0, kept.bytes as usize) };
        check(result, Tried::Call("unreserve"))
    }

    fn chunk_bytes(&self) -> u64 {
        self.chunk_bytes
    }

    fn map(&self, address: DeviceAddress, bytes: u64) -> Result<(), DriverError> {
        self.within(address, bytes, "map")?;
        self.enter()?;
        let (mut memory, wanted) = (0, self.allocation());
        // SAFETY: both pointers are to live values.
        let result =
            unsafe { sys::cuMemCreate(&raw mut memory, bytes as usize, &raw const wanted, 0) };
        check(result, Tried::Memory("map", bytes))?;
        // SAFETY: the range is part of one that is reserved, and the memory is as large.
        let mapped = unsafe { sys::cuMemMap(address.0, bytes as usize, 0, memory, 0) };
        // SAFETY: ours is the only handle; the memory lives on while it is mapped.
        let _ = unsafe { sys::cuMemRelease(memory) };
        check(mapped, Tried::Memory("map", bytes))?;
        check(self.allow(address, bytes), Tried::Memory("map", bytes)).inspect_err(|_| {
            // SAFETY: it was mapped just now.
            let _ = unsafe { sys::cuMemUnmap(address.0, bytes as usize) };
        })?;
        self.took(bytes);
        Ok(())
    }

    fn unmap(&self, address: DeviceAddress, bytes: u64) -> Result<(), DriverError> {
        self.within(address, bytes, "unmap")?;
        self.enter()?;
        // SAFETY: the range is part of one that is reserved; the library knows what was mapped.
        let result = unsafe { sys::cuMemUnmap(address.0, bytes as usize) };
        self.gave_back(bytes);
        check(result, Tried::Call("unmap"))
    }

    fn allocate_host(&self, bytes: u64) -> Result<DeviceAddress, DriverError> {
        self.enter()?;
        let tried = Tried::Memory("allocate_host", bytes);
        let mut host: *mut c_void = ptr::null_mut();
        // Page-locked for every context, and seen by the device.
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
        // SAFETY: the pointer is to a live one.
        check(unsafe { sys::cuMemHostAlloc(&raw mut host, bytes as usize, flags) }, tried)?;
        // SAFETY: as many bytes were given, which nobody else has.
        unsafe { ptr::write_bytes(host.cast::<u8>(), 0, bytes as usize) };
        let mut at: sys::CUdeviceptr = 0;
        // SAFETY: the memory was allocated so that the device sees it.
        let result = unsafe { sys::cuMemHostGetDevicePointer_v2(&raw mut at, host, 0) };
        check(result, tried).inspect_err(|_| {
            // SAFETY: it was given just now.
            let _ = unsafe { sys::cuMemFreeHost(host) };
        })?;
        Ok(self.add_piece(at, bytes, Kind::Host(host as Raw)))
    }

    fn free_host(&self, address: DeviceAddress) -> Result<(), DriverError> {
        let call = "free_host";
        let piece = self.take_piece(address, |kind| matches!(kind, Kind::Host(_)), call)?;
        let Kind::Host(raw) = piece.kind else { return Err(gone(call)) };
        self.enter()?;
        // SAFETY: it was given by `cuMemHostAlloc` and not given back before.
        check(unsafe { sys::cuMemFreeHost(raw as *mut c_void) }, Tried::Call(call))
    }

    fn write_host(&self, to: DeviceAddress, bytes: &[u8]) -> Result<(), DriverError> {
        let place = self.host(to, bytes.len(), "write_host")?;
        // SAFETY: so many bytes lie there in one allocation, which is no Rust value; what is borrowed is another.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), place, bytes.len()) };
        Ok(())
    }

    fn read_host(&self, from: DeviceAddress, bytes: &mut [u8]) -> Result<(), DriverError> {
        let place = self.host(from, bytes.len(), "read_host")?;
        // SAFETY: as in `write_host`; all of it was written when it was allocated.
        unsafe { ptr::copy_nonoverlapping(place, bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    fn register_host(&self, bytes: HostBytes) -> Result<DeviceAddress, DriverError> {
        self.enter()?;
        let call = "register_host";
        let (place, len) = {
            let held: &[u8] = (*bytes).as_ref();
            (held.as_ptr().cast_mut().cast::<c_void>(), held.len())
        };
        let seen = sys::CU_MEMHOSTREGISTER_DEVICEMAP;
        // SAFETY: the bytes are held until they are unregistered, and the device only reads them.
        let mut result = unsafe {
            sys::cuMemHostRegister_v2(place, len, seen | sys::CU_MEMHOSTREGISTER_READ_ONLY)
        };
        if result as u32 == status::NOT_SUPPORTED {
            // SAFETY: as above; some devices do not tell reading from writing.
            result = unsafe { sys::cuMemHostRegister_v2(place, len, seen) };
        }
        check(result, Tried::Memory(call, len as u64))?;
        let mut at: sys::CUdeviceptr = 0;
        // SAFETY: it was registered so that the device sees it.
        let result = unsafe { sys::cuMemHostGetDevicePointer_v2(&raw mut at, place, 0) };
        check(result, Tried::Call(call)).inspect_err(|_| {
            // SAFETY: it was registered just now.
            let _ = unsafe { sys::cuMemHostUnregister(place) };
        })?;
        Ok(self.add_piece(at, len as u64, Kind::Registered(bytes)))
    }

    fn unregister_host(&self, address: DeviceAddress) -> Result<(), DriverError> {
        let call = "unregister_host";
        let piece = self.take_piece(address, |kind| matches!(kind, Kind::Registered(_)), call)?;
        let Kind::Registered(bytes) = &piece.kind else { return Err(gone(call)) };
        let place = (**bytes).as_ref().as_ptr().cast_mut().cast::<c_void>();
        self.enter()?;
        // SAFETY: it was registered at this place, and the bytes are held until this has ended.
        check(unsafe { sys::cuMemHostUnregister(place) }, Tried::Call(call))
    }

    fn copy_to_device(
        &self,
        stream: Stream,
        to: DeviceAddress,
        bytes: &[u8],
    ) -> Result<(), DriverError> {
        let call = "copy_to_device";
        self.within(to, bytes.len() as u64, call)?;
        let raw = self.stream_of(stream, call)?;
        self.enter()?;
        // SAFETY: so many bytes are borrowed, and the stream is waited for before this ends.
        let result =
            unsafe { sys::cuMemcpyHtoDAsync_v2(to.0, bytes.as_ptr().cast(), bytes.len(), raw) };
        // Whatever was said, the borrow must not end before the copy.
        let done = self.synchronize(stream);
        check(result, Tried::Call(call)).and(done)
    }

    fn copy_to_host(
        &self,
        stream: Stream,
        bytes: &mut [u8],
        from: DeviceAddress,
    ) -> Result<(), DriverError> {
        let call = "copy_to_host";
        self.within(from, bytes.len() as u64, call)?;
        let raw = self.stream_of(stream, call)?;
        self.enter()?;
        // SAFETY: so many bytes are borrowed, and the stream is waited for before this ends.
        let result = unsafe {
            sys::cuMemcpyDtoHAsync_v2(bytes.as_mut_ptr().cast(), from.0, bytes.len(), raw)
        };
        let done = self.synchronize(stream);
        check(result, Tried::Call(call)).and(done)
    }

    fn copy(
        &self,
        stream: Stream,
        to: DeviceAddress,
        from: DeviceAddress,
        bytes: u64,
    ) -> Result<(), DriverError> {
        let call = "copy";
        self.within(to, bytes, call)?;
        self.within(from, bytes, call)?;
        let raw = self.stream_of(stream, call)?;
        self.enter()?;
        // SAFETY: both places are ours, and as large.
        let result = unsafe { sys::cuMemcpyAsync(to.0, from.0, bytes as usize, raw) };
        check(result, Tried::Call(call))
    }

    fn memset(
        &self,
        stream: Stream,
        to: DeviceAddress,
        byte: u8,
        bytes: u64,
    ) -> Result<(), DriverError> {
        let call = "memset";
        self.within(to, bytes, call)?;
        let raw = self.stream_of(stream, call)?;
        self.enter()?;
        // SAFETY: the place is ours, and as large.
        let result = unsafe { sys::cuMemsetD8Async(to.0, byte, bytes as usize, raw) };
        check(result, Tried::Call(call))
    }

    fn load_module(&self, image: &[u8]) -> Result<Module, DriverError> {
        let no_image = |error: NotACubin| DriverError::NoImage { problem: error.to_string() };
        cubin::whole(image).map_err(no_image)?;
        let cubin = Cubin::read(image).map_err(no_image)?;
        self.enter()?;
        let mut module: sys::CUmodule = ptr::null_mut();
        // SAFETY: the image is an ELF file that lies within its bytes, so the library, which is not told how long it is, ends
        // there; it keeps nothing of it.
        let result = unsafe { sys::cuModuleLoadData(&raw mut module, image.as_ptr().cast()) };
        check(result, Tried::Call("load_module"))?;
        let mut made = self.made();
        let id = made.add(module as Raw);
        made.cubins.insert(id, cubin);
        Ok(Module(id))
    }

    fn unload_module(&self, module: Module) -> Result<(), DriverError> {
        let call = "unload_module";
        let raw = self.take(module.0, call)?;
        let mut made = self.made();
        made.cubins.remove(&module.0);
        made.kernels.retain(|(own, _), _| *own != module.0);
        drop(made);
        self.enter()?;
        // SAFETY: it was loaded and is unloaded once.
        check(unsafe { sys::cuModuleUnload(raw as sys::CUmodule) }, Tried::Call(call))
    }

    fn launch(&self, stream: Stream, module: Module, launch: &Launch) -> Result<(), DriverError> {
        let raw = self.stream_of(stream, "launch")?;
        self.enter()?;
        let kernel = self.kernel(module, launch)?;
        let mut bytes = launch.args.packed();
        let mut len = bytes.len();
        let mut extra = [
            sys::CU_LAUNCH_PARAM_BUFFER_POINTER_AS_INT as Raw as *mut c_void,
            bytes.as_mut_ptr().cast::<c_void>(),
            sys::CU_LAUNCH_PARAM_BUFFER_SIZE_AS_INT as Raw as *mut c_void,
            (&raw mut len).cast::<c_void>(),
            ptr::null_mut(),
        ];
        let mut attributes = attributes(launch, self.card.sm);
        let config = sys::CUlaunchConfig {
            gridDimX: launch.grid[0],
            gridDimY: launch.grid[1],
            gridDimZ: launch.grid[2],
            blockDimX: launch.block[0],
            blockDimY: launch.block[1],
            blockDimZ: launch.block[2],
            sharedMemBytes: launch.shared_bytes,
            hStream: raw,
            attrs: attributes.as_mut_ptr(),
            numAttrs: attributes.len() as c_uint,
        };
        // SAFETY: the config and what it points to live until the call ends, which copies the parameters: as many bytes as
        // it is told, which are those of the kernel.
        let result = unsafe {
            sys::cuLaunchKernelEx(&raw const config, kernel, ptr::null_mut(), extra.as_mut_ptr())
        };
        check(result, Tried::Launch(launch.function))
    }

    fn stream(&self, priority: Priority) -> Result<Stream, DriverError> {
        self.enter()?;
        let (mut least, mut greatest) = (0, 0);
        // SAFETY: both pointers are to live numbers.
        let result = unsafe { sys::cuCtxGetStreamPriorityRange(&raw mut least, &raw mut greatest) };
        check(result, Tried::Call("stream"))?;
        let priority = if priority == Priority::High { greatest } else { least };
        let apart = sys::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as c_uint;
        let mut stream: sys::CUstream = ptr::null_mut();
        // SAFETY: the pointer is to a live one.
        let result = unsafe { sys::cuStreamCreateWithPriority(&raw mut stream, apart, priority) };
        check(result, Tried::Call("stream"))?;
        Ok(Stream(self.made().add(stream as Raw)))
    }

    fn free_stream(&self, stream: Stream) -> Result<(), DriverError> {
        let raw = self.take(stream.0, "free_stream")?;
        self.enter()?;
        // SAFETY: it was made and is forgotten once; the library ends it when its work is done.
        let result = unsafe { sys::cuStreamDestroy_v2(raw as sys::CUstream) };
        check(result, Tried::Call("free_stream"))
    }

    fn synchronize(&self, stream: Stream) -> Result<(), DriverError> {
        let raw = self.stream_of(stream, "synchronize")?;
        self.enter()?;
        // SAFETY: the stream lives.
        check(unsafe { sys::cuStreamSynchronize(raw) }, Tried::Call("synchronize"))
    }

    fn event(&self) -> Result<EventId, DriverError> {
        self.enter()?;
        let mut event: sys::CUevent = ptr::null_mut();
        // SAFETY: the pointer is to a live one.
        check(unsafe { sys::cuEventCreate(&raw mut event, 0) }, Tried::Call("event"))?;
        Ok(EventId(self.made().add(event as Raw)))
    }

    fn free_event(&self, event: EventId) -> Result<(), DriverError> {
        let raw = self.take(event.0, "free_event")?;
        self.enter()?;
        // SAFETY: it was made and is forgotten once.
        let result = unsafe { sys::cuEventDestroy_v2(raw as sys::CUevent) };
        check(result, Tried::Call("free_event"))
    }

    fn record(&self, event: EventId, stream: Stream) -> Result<(), DriverError> {
        let (event, stream) = (self.event_of(event, "record")?, self.stream_of(stream, "record")?);
        self.enter()?;
        // SAFETY: both live.
        check(unsafe { sys::cuEventRecord(event, stream) }, Tried::Call("record"))
    }

    fn wait(&self, stream: Stream, event: EventId) -> Result<(), DriverError> {
        let (event, stream) = (self.event_of(event, "wait")?, self.stream_of(stream, "wait")?);
        self.enter()?;
        // SAFETY: both live.
        check(unsafe { sys::cuStreamWaitEvent(stream, event, 0) }, Tried::Call("wait"))
    }

    fn query(&self, event: EventId) -> Result<bool, DriverError> {
        let raw = self.event_of(event, "query")?;
        self.enter()?;
        // SAFETY: it lives.
        let result = unsafe { sys::cuEventQuery(raw) };
        if result as u32 == status::NOT_READY {
            return Ok(false);
        }
        check(result, Tried::Call("query")).map(|()| true)
    }

    fn synchronize_event(&self, event: EventId) -> Result<(), DriverError> {
        let raw = self.event_of(event, "synchronize_event")?;
        self.enter()?;
        // SAFETY: it lives.
        check(unsafe { sys::cuEventSynchronize(raw) }, Tried::Call("synchronize_event"))
    }

    fn elapsed(&self, from: EventId, to: EventId) -> Result<Duration, DriverError> {
        let (from, to) = (self.event_of(from, "elapsed")?, self.event_of(to, "elapsed")?);
        self.enter()?;
        let mut milliseconds = 0.0_f32;
        // SAFETY: both live, and the pointer is to a live number.
        let result = unsafe { sys::cuEventElapsedTime(&raw mut milliseconds, from, to) };
        check(result, Tried::Call("elapsed"))?;
        Ok(Duration::from_secs_f32(milliseconds.max(0.0) / 1000.0))
    }

    fn begin_capture(&self, stream: Stream) -> Result<(), DriverError> {
        let raw = self.stream_of(stream, "begin_capture")?;
        self.enter()?;
        // Other threads work on in the meantime.
        let mode = sys::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream lives.
        check(unsafe { sys::cuStreamBeginCapture_v2(raw, mode) }, Tried::Call("begin_capture"))
    }

    fn end_capture(&self, stream: Stream) -> Result<CapturedGraph, DriverError> {
        let raw = self.stream_of(stream, "end_capture")?;
        self.enter()?;
        let mut graph: sys::CUgraph = ptr::null_mut();
        // SAFETY: the stream lives, and the pointer is to a live one.
        let result = unsafe { sys::cuStreamEndCapture(raw, &raw mut graph) };
        check(result, Tried::Call("end_capture"))?;
        Ok(CapturedGraph(self.made().add(graph as Raw)))
    }

    fn free_graph(&self, graph: CapturedGraph) -> Result<(), DriverError> {
        let raw = self.take(graph.0, "free_graph")?;
        self.enter()?;
        // SAFETY: it was captured and is forgotten once.
        check(unsafe { sys::cuGraphDestroy(raw as sys::CUgraph) }, Tried::Call("free_graph"))
    }

    fn instantiate(&self, graph: CapturedGraph) -> Result<GraphExec, DriverError> {
        let raw = self.raw(graph.0, "instantiate")? as sys::CUgraph;
        self.enter()?;
        let mut exec: sys::CUgraphExec = ptr::null_mut();
        // SAFETY: the graph lives, and the pointer is to a live one.
        let result = unsafe { sys::cuGraphInstantiateWithFlags(&raw mut exec, raw, 0) };
        check(result, Tried::Memory("instantiate", 0))?;
        Ok(GraphExec(self.made().add(exec as Raw)))
    }

    fn free_exec(&self, exec: GraphExec) -> Result<(), DriverError> {
        let raw = self.take(exec.0, "free_exec")?;
        self.enter()?;
        // SAFETY: it was made and is forgotten once.
        let result = unsafe { sys::cuGraphExecDestroy(raw as sys::CUgraphExec) };
        check(result, Tried::Call("free_exec"))
    }

    fn launch_graph(&self, stream: Stream, exec: GraphExec) -> Result<(), DriverError> {
        let call = "launch_graph";
        let exec = self.raw(exec.0, call)? as sys::CUgraphExec;
        let stream = self.stream_of(stream, call)?;
        self.enter()?;
        // SAFETY: both live.
        check(unsafe { sys::cuGraphLaunch(exec, stream) }, Tried::Call(call))
    }
}

/// Kernels know how to wait for what was before them from here on.
const EARLY_SINCE: Sm = Sm(90);

/// What a card has to know of a launch beside its grid.
fn attributes(launch: &Launch, sm: Sm) -> Vec<sys::CUlaunchAttribute> {
    let of = |id, value| sys::CUlaunchAttribute { id, pad: [0; 4], value };
    let mut attributes = Vec::new();
    if launch.early && sm >= EARLY_SINCE {
        let value = sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 };
        let id =
            sys::CUlaunchAttributeID_enum::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
        attributes.push(of(id, value));
    }
    if launch.cluster > 1 {
        let size =
            sys::CUlaunchAttributeValue_union__bindgen_ty_1 { x: launch.cluster, y: 1, z: 1 };
        let value = sys::CUlaunchAttributeValue { clusterDim: size };
        let id = sys::CUlaunchAttributeID_enum::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
        attributes.push(of(id, value));
    }
    attributes
}
