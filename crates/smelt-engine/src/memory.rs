//! Gives memory that was freed back to the system.

#![allow(unsafe_code)]

/// Has the allocator keep nothing that is free: else what one large request took may stay with the process for ever.
/// Takes some milliseconds.
pub fn give_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        unsafe extern "C" {
            fn malloc_trim(pad: usize) -> std::ffi::c_int;
        }
        // SAFETY: as glibc declares it; it takes a number, and its own locks.
        unsafe { malloc_trim(0) };
    }
}
