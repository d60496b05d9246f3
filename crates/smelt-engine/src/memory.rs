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

/// Has the allocator give back by itself what is large, and the ends of what threads have, as soon as it is free.
///
/// It would raise its own bounds for both to what was freed last, up to 32 and 64 MiB, and keep as much for each thread, out of
/// reach of [`give_back`].
pub fn keep_little() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        /// What the C library calls both bounds, and what they are from now on: 1 MiB and a half.
        const BOUNDS: [(std::ffi::c_int, std::ffi::c_int); 2] = [(-3, 1 << 20), (-1, 1 << 19)];
        unsafe extern "C" {
            fn mallopt(which: std::ffi::c_int, value: std::ffi::c_int) -> std::ffi::c_int;
        }
        for (which, value) in BOUNDS {
            // SAFETY: as glibc declares it; it takes two numbers, and its own locks.
            unsafe { mallopt(which, value) };
        }
    }
}
