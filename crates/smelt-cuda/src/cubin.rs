//! Reads what a cubin says of itself: the SM that it is for, and what each of its kernels takes.
//!
//! A cubin is an ELF file of 64 bits whose sections `.nv.info` and `.nv.info.NAME` are lists of attributes; they are
//! described nowhere and the same in CUDA 11 to 13, and are held here to what ptxas says (`tests/data/facts.*`).  Two
//! headers are known: that of CUDA 12 and that of 13.

use std::collections::BTreeMap;

use crate::Sm;

/// What `e_machine` says of code for GPUs.
const MACHINE: u16 = 190;
/// `EI_ABIVERSION` from CUDA 13 on, where flags hold the SM elsewhere.
const ABI_OF_13: u8 = 8;
/// Kernels may not be more: ours are some dozens.
const KERNELS_MAX: usize = 4096;
/// Bytes of shared memory that the system keeps of each block from sm_90 on; they count in the section.
const SHARED_KEPT: u64 = 1024;

/// Section types of ELF: a table of symbols, and what takes no bytes of the file.
const SYMBOLS: u32 = 2;
const NO_BITS: u32 = 8;

/// Attributes: registers of a thread, bytes of its stack, bytes of all parameters, one parameter.
const REGISTERS: u8 = 0x2f;
const FRAME: u8 = 0x11;
const PARAMETER_BYTES: u8 = 0x19;
/// How an attribute's value is kept: in the two bytes of its head, or behind it.
const SHORT: u8 = 3;
const LONG: u8 = 4;

/// Why bytes are no cubin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no cubin: {0}")]
pub struct NotACubin(String);

/// What a kernel takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelFacts {
    /// Registers of a thread.
    pub registers: u32,
    /// Bytes of a thread's stack: arrays that are no registers, and registers that were spilled.
    pub stack_bytes: u32,
    /// Bytes of shared memory that it declares.
    pub shared_bytes: u32,
    /// Bytes of its parameters.
    pub parameter_bytes: u32,
}

/// What a cubin says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cubin {
    /// What it is for.
    pub sm: Sm,
    /// Its kernels, by their names.
    pub kernels: BTreeMap<String, KernelFacts>,
}

impl Cubin {
    /// Of the bytes of a cubin.
    ///
    /// # Errors
    /// When they are none, or a part of it is not all there.
    pub fn read(bytes: &[u8]) -> Result<Self, NotACubin> {
        let file = ElfFile::read(bytes)?;
        let sm = file.sm()?;
        let mut kernels = BTreeMap::new();
        for (name, size) in file.with_prefix(".text.")? {
            if size > 0 {
                kernels.insert(name.to_owned(), KernelFacts::default());
            }
        }
        if kernels.is_empty() || kernels.len() > KERNELS_MAX {
            return Err(NotACubin(format!("it has {} kernels", kernels.len())));
        }
        let kept = if sm >= Sm(90) { SHARED_KEPT } else { 0 };
        for (name, size) in file.with_prefix(".nv.shared.")? {
            if let Some(kernel) = kernels.get_mut(name) {
                kernel.shared_bytes = narrow(size.saturating_sub(kept))?;
            }
        }
        file.frames(&mut kernels)?;
        for (name, kernel) in &mut kernels {
            let own = file.section(&format!(".nv.info.{name}"))?;
            for attribute in attributes(own.map_or(Ok(&[][..]), |own| file.content(own))?)? {
                if attribute.kind == PARAMETER_BYTES {
                    kernel.parameter_bytes = attribute.short.into();
                }
            }
        }
        Ok(Self { sm, kernels })
    }
}

/// Whether a cubin is all there: the driver is not told how many bytes it is given.
///
/// # Errors
/// When the bytes are no ELF file for GPUs, or one that ends elsewhere.
pub fn whole(bytes: &[u8]) -> Result<(), NotACubin> {
    let file = ElfFile::read(bytes)?;
    for section in &file.sections {
        file.content(section)?;
    }
    // Programs: where they begin, how long each entry is, how many there are; of each, its offset and length.
    let (at, size, count) =
        (number::<8>(bytes, 32)?, number::<2>(bytes, 54)?, number::<2>(bytes, 56)?);
    slice(bytes, at, count * size)?;
    for entry in (0..count).map(|nth| at + nth * size) {
        slice(bytes, number::<8>(bytes, entry + 8)?, number::<8>(bytes, entry + 32)?)?;
    }
    Ok(())
}

struct Section {
    name: u64,
    kind: u32,
    offset: u64,
    size: u64,
    link: u64,
}

struct ElfFile<'a> {
    bytes: &'a [u8],
    sections: Vec<Section>,
    /// Which section holds the names of sections.
    names: usize,
}

impl<'a> ElfFile<'a> {
    fn read(bytes: &'a [u8]) -> Result<Self, NotACubin> {
        // Sixty-four bits, little-endian.
        if !bytes.starts_with(b"\x7fELF\x02\x01") {
            return Err(NotACubin("it does not begin as one".to_owned()));
        }
        let machine = number::<2>(bytes, 18)?;
        if machine != u64::from(MACHINE) {
            return Err(NotACubin(format!("it is for machine {machine}, not for a GPU")));
        }
        let (at, size) = (number::<8>(bytes, 40)?, number::<2>(bytes, 58)?);
        let (count, names) = (number::<2>(bytes, 60)?, number::<2>(bytes, 62)?);
        slice(bytes, at, count * size)?;
        let section = |nth: u64| {
            let entry = at + nth * size;
            Ok(Section {
                name: number::<4>(bytes, entry)?,
                kind: narrow(number::<4>(bytes, entry + 4)?)?,
                offset: number::<8>(bytes, entry + 24)?,
                size: number::<8>(bytes, entry + 32)?,
                link: number::<4>(bytes, entry + 40)?,
            })
        };
        let sections = (0..count).map(section).collect::<Result<Vec<_>, NotACubin>>()?;
        Ok(Self { bytes, sections, names: place(names)? })
    }

    /// The SM that the flags hold: in the lowest byte, or from CUDA 13 on in the one above.
    fn sm(&self) -> Result<Sm, NotACubin> {
        let flags: u32 = narrow(number::<4>(self.bytes, 48)?)?;
        let shift = if self.bytes.get(8) >= Some(&ABI_OF_13) { 8 } else { 0 };
        Ok(Sm(flags >> shift & 0xff))
    }

    fn content(&self, section: &Section) -> Result<&'a [u8], NotACubin> {
        if section.kind == NO_BITS {
            return Ok(&[]);
        }
        slice(self.bytes, section.offset, section.size)
    }

    fn name(&self, section: &Section) -> Result<&'a str, NotACubin> {
        let table = self.sections.get(self.names).ok_or_else(cut)?;
        text(self.content(table)?, section.name)
    }

    fn section(&self, name: &str) -> Result<Option<&Section>, NotACubin> {
        for section in &self.sections {
            if self.name(section)? == name {
                return Ok(Some(section));
            }
        }
        Ok(None)
    }

    /// Sections whose names begin so: what follows in the name, and their sizes.
    fn with_prefix(&self, prefix: &str) -> Result<Vec<(&'a str, u64)>, NotACubin> {
        let mut found = Vec::new();
        for section in &self.sections {
            if let Some(rest) = self.name(section)?.strip_prefix(prefix) {
                found.push((rest, section.size));
            }
        }
        Ok(found)
    }

    /// Registers and stacks of kernels, which the file lists by the numbers of symbols.
    fn frames(&self, kernels: &mut BTreeMap<String, KernelFacts>) -> Result<(), NotACubin> {
        let symbols = self.sections.iter().find(|section| section.kind == SYMBOLS);
        let symbols = symbols.ok_or_else(|| NotACubin("it has no symbols".to_owned()))?;
        let names = self.sections.get(place(symbols.link)?).ok_or_else(cut)?;
        let (entries, names) = (self.content(symbols)?, self.content(names)?);
        let info =
            self.section(".nv.info")?.ok_or_else(|| NotACubin("it has no .nv.info".to_owned()))?;
        for attribute in attributes(self.content(info)?)? {
            if !matches!(attribute.kind, REGISTERS | FRAME) {
                continue;
            }
            let symbol = number::<4>(attribute.long, 0)?;
            let value = narrow(number::<4>(attribute.long, 4)?)?;
            // An entry of the table of symbols has 24 bytes and begins with its name.
            let name = text(names, number::<4>(entries, symbol * 24)?)?;
            match kernels.get_mut(name) {
                Some(kernel) if attribute.kind == REGISTERS => kernel.registers = value,
                Some(kernel) => kernel.stack_bytes = value,
                None => {}
            }
        }
        Ok(())
    }
}

struct Attribute<'a> {
    kind: u8,
    /// Its value where that is short.
    short: u16,
    /// Its value where that is long.
    long: &'a [u8],
}

/// The attributes of a section: a byte for the form, one for the kind, two that are the value or its length.
fn attributes(mut bytes: &[u8]) -> Result<Vec<Attribute<'_>>, NotACubin> {
    let mut found = Vec::new();
    while let Some((&[form, kind, low, high], rest)) = bytes.split_first_chunk::<4>() {
        let short = u16::from_le_bytes([low, high]);
        let len = if form == LONG { usize::from(short) } else { 0 };
        let (long, rest) = rest.split_at_checked(len).ok_or_else(cut)?;
        if matches!(form, SHORT | LONG) {
            found.push(Attribute { kind, short, long });
        }
        bytes = rest;
    }
    Ok(found)
}

fn cut() -> NotACubin {
    NotACubin("it names parts that are not in it".to_owned())
}

fn slice(bytes: &[u8], from: u64, len: u64) -> Result<&[u8], NotACubin> {
    let to = place(from.checked_add(len).ok_or_else(cut)?)?;
    bytes.get(place(from)?..to).ok_or_else(cut)
}

/// A number of `N` bytes, little-endian.
fn number<const N: usize>(bytes: &[u8], at: u64) -> Result<u64, NotACubin> {
    let found = slice(bytes, at, N as u64)?;
    Ok(found.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte)))
}

/// The text that ends by zero.
fn text(bytes: &[u8], at: u64) -> Result<&str, NotACubin> {
    let behind = bytes.get(place(at)?..).ok_or_else(cut)?;
    let len = behind.iter().position(|&byte| byte == 0).ok_or_else(cut)?;
    std::str::from_utf8(&behind[..len]).map_err(|_| NotACubin("a name is no text".to_owned()))
}

fn place(number: u64) -> Result<usize, NotACubin> {
    usize::try_from(number).map_err(|_| cut())
}

fn narrow(number: u64) -> Result<u32, NotACubin> {
    u32::try_from(number).map_err(|_| cut())
}

#[cfg(test)]
mod tests {
    use smelt_random::Random;

    use super::*;

    const FILES: [(u32, &[u8], &str); 3] = [
        (
            87,
            include_bytes!("../tests/data/facts.sm87.cubin"),
            include_str!("../tests/data/facts.sm87.log"),
        ),
        (
            90,
            include_bytes!("../tests/data/facts.sm90.cubin"),
            include_str!("../tests/data/facts.sm90.log"),
        ),
        (
            110,
            include_bytes!("../tests/data/facts.sm110.cubin"),
            include_str!("../tests/data/facts.sm110.log"),
        ),
    ];

    /// The number before `unit` in a line.
    fn before(line: &str, unit: &str) -> Option<u32> {
        line.split(unit)
            .next()
            .filter(|rest| *rest != line)?
            .split_whitespace()
            .last()?
            .parse()
            .ok()
    }

    /// What ptxas says of the kernels: registers, stack and shared memory.
    fn said(log: &str) -> BTreeMap<String, (u32, u32, u32)> {
        let mut said = BTreeMap::new();
        let mut name = "";
        for line in log.lines() {
            if let Some(rest) = line.split("entry function '").nth(1) {
                name = rest.split('\'').next().unwrap();
            }
            let (_, stack, _) = *said.entry(name.to_owned()).or_insert((0, 0, 0));
            let stack = before(line, " bytes stack frame").unwrap_or(stack);
            let registers = before(line, " registers").unwrap_or(0);
            let shared = before(line, " bytes smem").unwrap_or(0);
            said.insert(name.to_owned(), (registers, stack, shared));
            if registers > 0 {
                name = "";
            }
        }
        said.remove("");
        said
    }

    #[test]
    fn facts_are_those_that_ptxas_tells() {
        for (sm, bytes, log) in FILES {
            let cubin = Cubin::read(bytes).unwrap();
            assert_eq!(cubin.sm, Sm(sm));
            let found = cubin.kernels.iter().map(|(name, facts)| {
                (name.clone(), (facts.registers, facts.stack_bytes, facts.shared_bytes))
            });
            let found: BTreeMap<_, _> = found.collect();
            assert_eq!(found, said(log), "sm_{sm}");
            assert_eq!((found["shared"].2, found["spilling"].1), (256, 64), "sm_{sm}");
            let parameters = |name| cubin.kernels[name].parameter_bytes;
            assert_eq!(
                (parameters("add"), parameters("shared"), parameters("spilling")),
                (16, 8, 12)
            );
            whole(bytes).unwrap();
        }
    }

    #[test]
    fn no_cut_and_no_changed_byte_makes_it_panic_and_cuts_are_refused() {
        for (_, bytes, _) in FILES {
            for len in (0..bytes.len()).step_by(7).chain([bytes.len() - 1]) {
                whole(&bytes[..len]).unwrap_err();
            }
            let random = &mut Random::new(1);
            for _ in 0..2_000 {
                let mut changed = bytes.to_vec();
                for _ in 0..1 + random.below(4) {
                    let at = random.below(changed.len());
                    changed[at] = random.below(256) as u8;
                }
                let _ = (Cubin::read(&changed), whole(&changed));
            }
        }
        let error = whole(b"\x7fELF\x02\x01").unwrap_err().to_string();
        assert_eq!(error, "no cubin: it names parts that are not in it");
        assert!(whole(b"// source").is_err());
    }
}
