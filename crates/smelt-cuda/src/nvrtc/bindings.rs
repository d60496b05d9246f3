//! Calls NVRTC: six functions of its library, which have been the same since CUDA 11.1.
//!
//! Bound here by hand: the bindings of `cudarc` take the library by a name that one version has, and two are needed.

#![allow(unsafe_code)]

use std::ffi::{CString, c_char, c_int, c_void};
use std::path::Path;
use std::ptr;

use libloading::Library as Loaded;
use smelt_backend::installed;

/// What the library answers where all went well.
const SUCCESS: c_int = 0;

/// A program, as the library holds it.
type Program = *mut c_void;
type Create = unsafe extern "C" fn(
    *mut Program,
    *const c_char,
    *const c_char,
    c_int,
    *const *const c_char,
    *const *const c_char,
) -> c_int;
type Destroy = unsafe extern "C" fn(*mut Program) -> c_int;
type Compile = unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int;
type Size = unsafe extern "C" fn(Program, *mut usize) -> c_int;
type Get = unsafe extern "C" fn(Program, *mut c_char) -> c_int;

/// What a compiler made.
pub(super) struct Made {
    pub(super) image: Vec<u8>,
    pub(super) log: String,
}

/// The library, with what is used of it.
pub(super) struct Library {
    create: Create,
    destroy: Destroy,
    compile: Compile,
    log_size: Size,
    log: Get,
    image_size: Size,
    image: Get,
    /// Those before live as long as it is loaded.
    _loaded: Loaded,
}

impl Library {
    /// Loads the library at `path`.
    pub(super) fn load(path: &Path) -> Result<Self, String> {
        load_builtins(path)?;
        let loaded = open(path)?;
        let library = Self {
            create: function(&loaded, "nvrtcCreateProgram")?,
            destroy: function(&loaded, "nvrtcDestroyProgram")?,
            compile: function(&loaded, "nvrtcCompileProgram")?,
            log_size: function(&loaded, "nvrtcGetProgramLogSize")?,
            log: function(&loaded, "nvrtcGetProgramLog")?,
            image_size: function(&loaded, "nvrtcGetCUBINSize")?,
            image: function(&loaded, "nvrtcGetCUBIN")?,
            _loaded: loaded,
        };
        Ok(library)
    }

    /// Compiles a text; the error is the log.
    pub(super) fn compile(
        &self,
        name: &str,
        text: &str,
        options: &[String],
    ) -> Result<Made, String> {
        let (name, text) = (c_text(name)?, c_text(text)?);
        let options = options.iter().map(|option| c_text(option)).collect::<Result<Vec<_>, _>>()?;
        let places: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        let mut program: Program = ptr::null_mut();
        // SAFETY: both texts end by zero and live until the program is destroyed; there are no headers, as their count says.
        let created = unsafe {
            (self.create)(
                &raw mut program,
                text.as_ptr(),
                name.as_ptr(),
                0,
                ptr::null(),
                ptr::null(),
            )
        };
        if created != SUCCESS {
            return Err(format!("NVRTC refuses a program with status {created}"));
        }
        // SAFETY: as many options as the count says, each ends by zero, and all live until the call ends.
        let compiled = unsafe { (self.compile)(program, places.len() as c_int, places.as_ptr()) };
        let log = self.read(program, self.log_size, self.log);
        let image = self.read(program, self.image_size, self.image);
        // SAFETY: the program was created and is destroyed once.
        let _ = unsafe { (self.destroy)(&raw mut program) };
        let log = String::from_utf8_lossy(&log?).trim_end_matches('\0').to_owned();
        match compiled {
            SUCCESS => Ok(Made { image: image?, log }),
            status if log.trim().is_empty() => Err(format!("NVRTC fails with status {status}")),
            _ => Err(log),
        }
    }

    /// Bytes that the library has of a program: it says how many, then writes as many.
    fn read(&self, program: Program, size: Size, get: Get) -> Result<Vec<u8>, String> {
        let mut len = 0_usize;
        // SAFETY: the program lives, and the pointer is to a live number.
        let told = unsafe { size(program, &raw mut len) };
        let mut bytes = vec![0_u8; len];
        // SAFETY: as many bytes are there as the library said that it writes.
        let got =
            if told == SUCCESS { unsafe { get(program, bytes.as_mut_ptr().cast()) } } else { told };
        if got != SUCCESS {
            return Err(format!("NVRTC gives nothing, with status {got}"));
        }
        Ok(bytes)
    }
}

/// Loads the second library first, which the first looks for by its name alone: it lies beside it, where no loader looks.
fn load_builtins(path: &Path) -> Result<(), String> {
    let folder = path.canonicalize().map_err(|error| error.to_string())?;
    let builtins =
        folder.parent().and_then(|folder| installed::library(folder, "libnvrtc-builtins.so"));
    if let Some(builtins) = builtins {
        std::mem::forget(open(&builtins)?);
    }
    Ok(())
}

fn open(path: &Path) -> Result<Loaded, String> {
    // SAFETY: loading runs the library's own beginnings; it is NVIDIA's compiler by its name and place.
    let loaded = unsafe { Loaded::new(path) };
    loaded.map_err(|error| error.to_string().replace('\n', "; "))
}

fn function<T: Copy>(loaded: &Loaded, name: &str) -> Result<T, String> {
    // SAFETY: the types are those of `nvrtc.h` for these names.
    let found = unsafe { loaded.get::<T>(name.as_bytes()) };
    found.map(|symbol| *symbol).map_err(|_| format!("it has no {name}"))
}

fn c_text(text: &str) -> Result<CString, String> {
    CString::new(text).map_err(|_| "a text holds a zero".to_owned())
}
