//! Says which kernel runs on what: a launch is plain data.

use std::fmt;

use crate::DeviceAddress;

/// A kernel, by the name that its code has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Function(pub &'static str);

impl fmt::Display for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// One thing that a kernel is given.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arg {
    /// A pointer.
    Address(DeviceAddress),
    /// `unsigned int`.
    U32(u32),
    /// `int`.
    I32(i32),
    /// `float`.
    F32(f32),
    /// `unsigned long long`.
    U64(u64),
}

impl Arg {
    /// Its bytes as the kernel reads them, little-endian, and how many of them count.
    pub const fn bytes(self) -> ([u8; 8], usize) {
        match self {
            Self::Address(DeviceAddress(number)) | Self::U64(number) => (number.to_le_bytes(), 8),
            Self::U32(number) => ((number as u64).to_le_bytes(), 4),
            Self::I32(number) => ((number.cast_unsigned() as u64).to_le_bytes(), 4),
            Self::F32(number) => ((number.to_bits() as u64).to_le_bytes(), 4),
        }
    }
}

impl From<DeviceAddress> for Arg {
    fn from(address: DeviceAddress) -> Self {
        Self::Address(address)
    }
}

impl From<u32> for Arg {
    fn from(number: u32) -> Self {
        Self::U32(number)
    }
}

impl From<i32> for Arg {
    fn from(number: i32) -> Self {
        Self::I32(number)
    }
}

impl From<f32> for Arg {
    fn from(number: f32) -> Self {
        Self::F32(number)
    }
}

impl From<u64> for Arg {
    fn from(number: u64) -> Self {
        Self::U64(number)
    }
}

/// What a kernel is given, in the order of its parameters.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LaunchArgs(Vec<Arg>);

impl LaunchArgs {
    /// Nothing yet.
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// The same with one more.
    #[must_use]
    pub fn with(mut self, arg: impl Into<Arg>) -> Self {
        self.0.push(arg.into());
        self
    }

    /// All, in order.
    pub fn args(&self) -> &[Arg] {
        &self.0
    }

    /// The bytes that the kernel reads, each as far in as C puts it: at a multiple of its own length.
    pub fn packed(&self) -> Vec<u8> {
        let mut packed = Vec::with_capacity(self.0.len() * 8);
        for arg in &self.0 {
            let (bytes, len) = arg.bytes();
            packed.resize(packed.len().next_multiple_of(len), 0);
            packed.extend_from_slice(&bytes[..len]);
        }
        packed
    }

    /// The places that it names, without those that are none.
    pub fn addresses(&self) -> impl Iterator<Item = DeviceAddress> + '_ {
        self.0.iter().filter_map(|arg| match arg {
            Arg::Address(address) if !address.is_null() => Some(*address),
            _ => None,
        })
    }
}

/// One run of a kernel over a grid of blocks.
#[derive(Clone, Debug, PartialEq)]
pub struct Launch {
    /// The kernel.
    pub function: Function,
    /// Blocks in x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y and z.
    pub block: [u32; 3],
    /// Blocks along x that run at once and share their memory; 1 for blocks by themselves (sm_90 and later have more).
    pub cluster: u32,
    /// Bytes of shared memory beside what the kernel declares.
    pub shared_bytes: u32,
    /// Whether it may begin while the launch before it ends: its kernel waits for that one itself before it reads what that
    /// wrote (`griddepcontrol`, sm_90 and later; others begin it afterwards).
    pub early: bool,
    /// What the kernel is given.
    pub args: LaunchArgs,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_the_bytes_that_c_has() {
        let bytes = |arg: Arg| {
            let (bytes, len) = arg.bytes();
            bytes[..len].to_vec()
        };
        assert_eq!(bytes(DeviceAddress(0x0102_0304_0506_0708).into()), [8, 7, 6, 5, 4, 3, 2, 1]);
        assert_eq!(bytes(Arg::I32(-2)), (-2_i32).to_ne_bytes());
        assert_eq!(bytes(1.5_f32.into()), 1.5_f32.to_ne_bytes());
        assert_eq!(bytes(7_u32.into()), [7, 0, 0, 0]);
        assert_eq!(bytes(7_u64.into()).len(), 8);
    }

    #[test]
    fn parameters_lie_where_c_puts_them() {
        let args = LaunchArgs::new().with(1_u32).with(DeviceAddress(2)).with(3_u32).with(4.0_f32);
        let packed = args.packed();
        assert_eq!(packed.len(), 24);
        assert_eq!((packed[0], packed[8], packed[16]), (1, 2, 3));
        assert_eq!(packed[20..], 4.0_f32.to_le_bytes());
        assert_eq!(LaunchArgs::new().with(5_u32).packed(), [5, 0, 0, 0]);
    }

    #[test]
    fn a_launch_names_the_memory_that_it_is_given() {
        let args = LaunchArgs::new().with(DeviceAddress(16)).with(3_u32).with(DeviceAddress::NULL);
        assert_eq!(args.addresses().collect::<Vec<_>>(), [DeviceAddress(16)]);
        assert_eq!(args.args().len(), 3);
    }
}
