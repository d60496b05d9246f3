//! NVIDIA's driver on a real card, beside the twin that records: the same use gives the same numbers.
//!
//! Where there is no card of compute capability 9.0 the tests say so; the twin's half runs anywhere.

use std::sync::Arc;

use smelt_cuda::owned::{
    DeviceBuffer, HostBuffer, OwnedEvent, OwnedModule, OwnedStream, RegisteredBytes, Reservation,
};
use smelt_cuda::recording::{Astray, RecordingDriver, TwinMemory, card};
use smelt_cuda::{
    Arg, DeviceAddress, Driver, DriverError, Function, Launch, LaunchArgs, NoCard, Priority, Sm,
    cards, open,
};

const CUBIN: &[u8] = include_bytes!("data/facts.sm90.cubin");
const ADD: Function = Function("add");
const COUNT: usize = 1000;

/// What `add` of `facts.cu` does.
fn add(memory: &mut TwinMemory, launch: &Launch) -> Result<(), Astray> {
    let [Arg::Address(at), Arg::I32(count), Arg::F32(more)] = launch.args.args() else {
        return Err(Astray("other arguments".to_owned()));
    };
    let sums: Vec<f32> =
        memory.f32s(*at, *count as usize)?.into_iter().map(|number| number + more).collect();
    memory.set_f32s(*at, &sums)
}

fn twin() -> Arc<dyn Driver> {
    let twin = RecordingDriver::new(card(Sm(90), 1 << 30, false));
    twin.teach(ADD, Arc::new(add));
    Arc::new(twin)
}

/// The first card that runs the kernels here.
fn real() -> Option<Arc<dyn Driver>> {
    let found = cards().map(|cards| cards.into_iter().find(|card| card.sm == Sm(90)));
    match found {
        Ok(Some(card)) => Some(open(card.ordinal).unwrap()),
        Ok(None) => {
            eprintln!("NOT TESTED: no card is sm_90");
            None
        }
        Err(why) => {
            eprintln!("NOT TESTED: {why}");
            None
        }
    }
}

fn adding(at: DeviceAddress, more: f32) -> Launch {
    let args = LaunchArgs::new().with(at).with(COUNT as i32).with(more);
    let (grid, block) = ([COUNT.div_ceil(128) as u32, 1, 1], [128, 1, 1]);
    Launch { function: ADD, grid, block, cluster: 1, shared_bytes: 0, early: false, args }
}

fn bytes(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

/// Numbers that went through every kind of memory and a graph that was launched twice.
fn everything(driver: &Arc<dyn Driver>) -> Result<Vec<u8>, DriverError> {
    let (size, page) = (COUNT as u64 * 4, driver.chunk_bytes());
    let (stream, other) =
        (OwnedStream::new(driver, Priority::High)?, OwnedStream::new(driver, Priority::Low)?);
    let module = OwnedModule::new(driver, CUBIN)?;
    let numbers: Vec<f32> = (0..COUNT).map(|number| number as f32).collect();
    let mut pages = bytes(&numbers);
    pages.resize(4096, 0);
    let registered = RegisteredBytes::new(driver, Arc::new(pages))?;
    let (buffer, host) = (DeviceBuffer::new(driver, size)?, HostBuffer::new(driver, size)?);
    let mut reserved = Reservation::new(driver, 4 * page)?;
    reserved.grow(page)?;
    reserved.grow(page)?;
    // Across the border of two pieces.
    let across = reserved.address().offset(page - 2000);
    let graph = stream.capture(|stream| module.launch(stream, &adding(buffer.address(), 0.5)))?;
    let (begin, end) = (OwnedEvent::new(driver)?, OwnedEvent::new(driver)?);
    driver.memset(stream.id(), buffer.address(), 0xff, size)?;
    driver.copy(stream.id(), buffer.address(), registered.address(), size)?;
    driver.record(begin.id(), stream.id())?;
    graph.launch(stream.id())?;
    graph.launch(stream.id())?;
    driver.record(end.id(), stream.id())?;
    driver.wait(other.id(), end.id())?;
    driver.copy(other.id(), across, buffer.address(), size)?;
    driver.copy(other.id(), host.address(), across, size)?;
    other.synchronize()?;
    while !driver.query(end.id())? {}
    assert!(driver.elapsed(begin.id(), end.id())? < std::time::Duration::from_secs(5));
    let mut found = vec![0; size as usize];
    host.read(0, &mut found)?;
    let mut copied = vec![0; size as usize];
    driver.copy_to_host(stream.id(), &mut copied, across)?;
    assert!(found == copied);
    host.write(4, &[0; 4])?;
    driver.copy_to_device(stream.id(), buffer.address(), &found)?;
    reserved.shrink()?;
    assert_eq!(reserved.mapped_bytes(), page);
    Ok(found)
}

#[test]
fn a_card_and_its_twin_give_the_same_numbers() {
    let expect: Vec<f32> = (0..COUNT).map(|number| number as f32 + 1.0).collect();
    for driver in [Some(twin()), real()].into_iter().flatten() {
        let before = driver.memory_info().unwrap().free_bytes;
        for _ in 0..3 {
            assert!(everything(&driver).unwrap() == bytes(&expect), "{}", driver.card().name);
        }
        let lost = before.saturating_sub(driver.memory_info().unwrap().free_bytes);
        assert!(lost < 64 << 20, "{lost} bytes did not come back");
    }
}

#[test]
fn a_card_refuses_what_its_twin_refuses() {
    for driver in [Some(twin()), real()].into_iter().flatten() {
        let stream = OwnedStream::new(&driver, Priority::Low).unwrap();
        let module = OwnedModule::new(&driver, CUBIN).unwrap();
        let buffer = DeviceBuffer::new(&driver, COUNT as u64 * 4).unwrap();
        let total = driver.memory_info().unwrap().total_bytes;
        let huge = DeviceBuffer::new(&driver, total + 1).unwrap_err();
        assert_eq!(huge, DriverError::NoMemory { bytes: total + 1 });
        let good = adding(buffer.address(), 1.0);
        let too_large = driver.card().shared_bytes_max + 1;
        for bad in [
            Launch { block: [1025, 1, 1], ..good.clone() },
            Launch { shared_bytes: too_large, ..good.clone() },
        ] {
            let error = module.launch(stream.id(), &bad).unwrap_err();
            assert!(matches!(error, DriverError::LaunchRefused { .. }), "{error}");
        }
        module.launch(stream.id(), &Launch { shared_bytes: 64 << 10, ..good }).unwrap();
        stream.synchronize().unwrap();
        assert!(driver.read_host(buffer.address(), &mut [0; 4]).is_err());
        let past = buffer.address().offset(COUNT as u64 * 4 - 2);
        assert!(driver.copy_to_device(stream.id(), past, &[0; 4]).is_err());
    }
}

#[test]
fn launches_with_other_parameters_than_the_kernels_never_reach_the_driver() {
    let Some(driver) = real() else { return };
    let stream = OwnedStream::new(&driver, Priority::Low).unwrap();
    let module = OwnedModule::new(&driver, CUBIN).unwrap();
    let good = adding(DeviceAddress::NULL, 1.0);
    let short = Launch { args: LaunchArgs::new().with(0_u64), ..good.clone() };
    let unknown = Launch { function: Function("none"), ..good };
    for (bad, words) in [(short, "it takes 16 bytes"), (unknown, "have none of that name")] {
        let error = module.launch(stream.id(), &bad).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
    let cut = OwnedModule::new(&driver, &CUBIN[..1000]).unwrap_err();
    assert!(matches!(cut, DriverError::NoImage { .. }), "{cut}");
    let other = OwnedModule::new(&driver, include_bytes!("data/facts.sm87.cubin")).unwrap_err();
    assert!(matches!(other, DriverError::NoImage { .. }), "{other}");
}

#[test]
fn after_a_kernel_went_astray_all_calls_fail_until_the_card_is_opened_anew() {
    let Some(driver) = real() else { return };
    let stream = OwnedStream::new(&driver, Priority::Low).unwrap();
    let module = OwnedModule::new(&driver, CUBIN).unwrap();
    module.launch(stream.id(), &adding(DeviceAddress(1 << 60), 1.0)).unwrap();
    let error = stream.synchronize().unwrap_err();
    assert!(error.is_sticky(), "{error}");
    assert!(driver.allocate(16).unwrap_err().is_sticky());
    drop((stream, module));
    drop(driver);
    let again = real().unwrap();
    everything(&again).unwrap();
}

#[test]
fn a_card_that_is_not_there_is_refused() {
    match cards() {
        Ok(cards) => {
            let (count, ordinal) = (cards.len() as u32, cards.len() as u32);
            assert_eq!(open(ordinal).unwrap_err(), NoCard::NoSuchCard { count, ordinal });
        }
        Err(why) => {
            assert_eq!(open(0).unwrap_err(), why);
            assert_eq!(why.to_string().lines().count(), 1, "{why}");
        }
    }
}
