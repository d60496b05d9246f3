use std::sync::Arc;

use super::*;
use crate::LaunchArgs;
use crate::owned::{DeviceBuffer, HostBuffer, OwnedEvent, OwnedModule, OwnedStream, Reservation};

const ADD: Function = Function("add");

/// Adds the second argument to as many numbers as the third says.
fn add(memory: &mut TwinMemory, launch: &Launch) -> Result<(), Astray> {
    let [crate::Arg::Address(at), crate::Arg::U32(more), crate::Arg::U32(count)] =
        launch.args.args()
    else {
        return Err(Astray("other arguments".to_owned()));
    };
    let numbers = memory.u32s(*at, *count as usize)?;
    let sums: Vec<u32> = numbers.iter().map(|number| number + more).collect();
    memory.set_u32s(*at, &sums)
}

fn twin() -> (Arc<RecordingDriver>, Arc<dyn Driver>) {
    let twin = Arc::new(RecordingDriver::new(card(Sm(90), 1 << 20, false)));
    twin.teach(ADD, Arc::new(add));
    let driver: Arc<dyn Driver> = Arc::<RecordingDriver>::clone(&twin);
    (twin, driver)
}

fn adding(at: DeviceAddress, more: u32, count: u32) -> Launch {
    let args = LaunchArgs::new().with(at).with(more).with(count);
    let (grid, block) = ([1; 3], [32, 1, 1]);
    Launch { function: ADD, grid, block, cluster: 1, shared_bytes: 0, early: false, args }
}

fn numbers(bytes: &[u8]) -> Vec<u32> {
    bytes.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect()
}

/// Uses everything that a driver has; the numbers that come of it.
fn everything(driver: &Arc<dyn Driver>) -> Result<Vec<u32>, DriverError> {
    driver.memory_info()?;
    let (stream, other) =
        (OwnedStream::new(driver, Priority::High)?, OwnedStream::new(driver, Priority::Low)?);
    let module = OwnedModule::new(driver, b"cubin")?;
    let buffer = DeviceBuffer::new(driver, 16)?;
    let host = HostBuffer::new(driver, 16)?;
    let mut pages = Reservation::new(driver, 2 * CHUNK_BYTES)?;
    pages.grow(CHUNK_BYTES)?;
    let (begin, end) = (OwnedEvent::new(driver)?, OwnedEvent::new(driver)?);
    driver.copy_to_device(stream.id(), buffer.address(), &[0; 16])?;
    host.write(0, &[1, 0, 0, 0])?;
    let graph = stream.capture(|stream| {
        driver.copy(stream, buffer.address(), host.address(), 4)?;
        module.launch(stream, &adding(buffer.address(), 5, 4))
    })?;
    let mut found = [0; 16];
    let mut put = || {
        driver.record(begin.id(), stream.id())?;
        graph.launch(stream.id())?;
        driver.record(end.id(), stream.id())?;
        driver.wait(other.id(), end.id())?;
        driver.copy(other.id(), pages.address(), buffer.address(), 16)?;
        while !driver.query(end.id())? {}
        driver.copy_to_host(other.id(), &mut found, pages.address())
    };
    let put = put();
    // Whatever happened, memory is not given back below work.
    let done = stream.synchronize().and(other.synchronize());
    put.and(done)?;
    driver.elapsed(begin.id(), end.id())?;
    pages.shrink()?;
    Ok(numbers(&found))
}

#[test]
fn work_is_done_in_its_order_and_nothing_is_left() {
    let (twin, driver) = twin();
    twin.answer_late(3);
    assert_eq!(everything(&driver), Ok(vec![6, 5, 5, 5]));
    assert_eq!(twin.violations(), [""; 0]);
    assert_eq!(twin.held(), Held::default());
    let launched = twin.calls().into_iter().filter_map(|call| call.launch);
    assert_eq!(launched.map(|launch| launch.function).collect::<Vec<_>>(), [ADD]);
}

#[test]
fn wrappers_give_everything_back_whatever_call_fails() {
    let (twin_of_all, driver) = twin();
    everything(&driver).unwrap();
    let calls = twin_of_all.calls().len();
    let lost = DriverError::DeviceLost { call: "launch", problem: "gone".to_owned() };
    let errors = [DriverError::NoMemory { bytes: 1 }, refused("any", "no"), lost];
    let mut told = 0;
    for (nth, error) in (0..calls).flat_map(|nth| errors.iter().map(move |error| (nth, error))) {
        let (twin, driver) = twin();
        twin.fail_after(nth, error.clone());
        let found = everything(&driver);
        let name = twin.calls()[nth].name;
        // What is given back by a wrapper has nobody to tell.
        let is_release = name.starts_with("free") || name.starts_with("un");
        assert!(is_release || found.as_ref() == Err(error), "{nth} {name}: {found:?}");
        told += usize::from(!is_release);
        assert_eq!(twin.held(), Held::default(), "{nth} {name} {error}");
        assert_eq!(twin.violations(), [""; 0], "{nth} {name} {error}");
    }
    assert!(told > 50, "{told}");
}

#[track_caller]
fn violates(words: &str, wrong: impl FnOnce(&Arc<dyn Driver>, Stream, Module)) {
    let (twin, driver) = twin();
    let (stream, module) =
        (driver.stream(Priority::Low).unwrap(), driver.load_module(b"cubin").unwrap());
    wrong(&driver, stream, module);
    let found = twin.violations();
    assert!(found.iter().any(|line| line.contains(words)), "{found:?} lacks {words:?}");
}

#[test]
fn memory_that_is_given_back_below_work_is_found() {
    violates("work that names", |driver, stream, module| {
        let buffer = DeviceBuffer::new(driver, 16).unwrap();
        driver.launch(stream, module, &adding(buffer.address(), 1, 4)).unwrap();
    });
    violates("are not all there", |driver, stream, module| {
        let at = DeviceBuffer::new(driver, 16).unwrap().address();
        driver.launch(stream, module, &adding(at, 1, 4)).unwrap();
        let error = driver.synchronize(stream).unwrap_err();
        assert!(error.is_sticky());
        assert_eq!(driver.memory_info(), Err(error), "lost is lost");
    });
}

#[test]
fn kernels_and_copies_that_go_past_their_memory_are_found() {
    violates("add: 20 bytes at", |driver, stream, module| {
        let buffer = DeviceBuffer::new(driver, 16).unwrap();
        driver.launch(stream, module, &adding(buffer.address(), 1, 5)).unwrap();
        driver.synchronize(stream).unwrap_err();
    });
    violates("17 bytes at", |driver, stream, _| {
        let buffer = DeviceBuffer::new(driver, 16).unwrap();
        driver.copy_to_device(stream, buffer.address(), &[0; 17]).unwrap_err();
    });
    violates("are not all there", |driver, stream, _| {
        let mut pages = Reservation::new(driver, 2 * CHUNK_BYTES).unwrap();
        pages.grow(CHUNK_BYTES).unwrap();
        let end = pages.address().offset(CHUNK_BYTES - 8);
        driver.memset(stream, end, 0, 16).unwrap();
        driver.synchronize(stream).unwrap_err();
    });
    violates("may only be read", |driver, stream, _| {
        let bytes: HostBytes = Arc::new(vec![0_u8; 16]);
        let at = driver.register_host(bytes).unwrap();
        driver.memset(stream, at, 0, 16).unwrap();
        driver.synchronize(stream).unwrap_err();
    });
}

#[test]
fn who_reads_a_result_before_it_is_there_is_found() {
    violates("read_host: work that writes", |driver, stream, _| {
        let host = HostBuffer::new(driver, 16).unwrap();
        driver.memset(stream, host.address(), 0, 16).unwrap();
        host.read(0, &mut [0; 4]).unwrap_err();
        driver.synchronize(stream).unwrap();
        host.read(0, &mut [0; 4]).unwrap();
    });
    violates("write_host: work that names", |driver, stream, _| {
        let (host, buffer) =
            (HostBuffer::new(driver, 16).unwrap(), DeviceBuffer::new(driver, 16).unwrap());
        driver.copy(stream, buffer.address(), host.address(), 16).unwrap();
        host.write(0, &[0]).unwrap_err();
        driver.synchronize(stream).unwrap();
    });
}

#[test]
fn a_thread_that_captures_takes_no_memory_and_waits_for_nothing() {
    violates("allocate while the thread captures", |driver, stream, _| {
        driver.begin_capture(stream).unwrap();
        driver.allocate(16).unwrap_err();
    });
    violates("synchronize while the thread captures", |driver, stream, _| {
        driver.begin_capture(stream).unwrap();
        driver.synchronize(stream).unwrap_err();
    });
}

#[test]
fn what_a_card_cannot_launch_is_refused_and_harms_nothing() {
    let (twin, driver) = twin();
    let (stream, module) =
        (OwnedStream::new(&driver, Priority::Low).unwrap(), driver.load_module(b"").unwrap());
    let good = adding(DeviceAddress::NULL, 1, 0);
    for bad in [
        Launch { block: [1025, 1, 1], ..good.clone() },
        Launch { block: [64, 32, 1], ..good.clone() },
        Launch { grid: [1, 0, 1], ..good.clone() },
        Launch { grid: [1, 0x10000, 1], ..good.clone() },
        Launch { cluster: 2, ..good.clone() },
        Launch { cluster: 0, ..good.clone() },
        Launch { shared_bytes: 1 << 20, ..good },
    ] {
        let error = driver.launch(stream.id(), module, &bad).unwrap_err();
        assert!(matches!(error, DriverError::LaunchRefused { function: ADD, .. }), "{error}");
    }
    stream.synchronize().unwrap();
    assert_eq!(twin.violations(), [""; 0]);
}

#[test]
fn memory_ends_where_the_cards_does() {
    let (twin, driver) = twin();
    let half = DeviceBuffer::new(&driver, 1 << 19).unwrap();
    let error = DeviceBuffer::new(&driver, (1 << 19) + 1).unwrap_err();
    assert_eq!(error, DriverError::NoMemory { bytes: (1 << 19) + 1 });
    let mut pages = Reservation::new(&driver, 1 << 30).unwrap();
    for _ in 0..8 {
        pages.grow(CHUNK_BYTES).unwrap();
    }
    assert_eq!(driver.memory_info().unwrap().free_bytes, 0);
    assert_eq!(pages.grow(1), Err(DriverError::NoMemory { bytes: CHUNK_BYTES }));
    drop(half);
    pages.grow(1).unwrap();
    assert_eq!(pages.mapped_bytes(), 9 * CHUNK_BYTES);
    drop(pages);
    assert_eq!((twin.held(), twin.violations().len()), (Held::default(), 0));
}
