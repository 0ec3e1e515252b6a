//! A file system that reports data as holes, for tests.

use std::io;

use libc::{
    BPF_ABS, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W, SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO, SYS_lseek,
    sock_filter, sock_fprog,
};

/// Makes the kernel report to this thread that no file has data. A filter (seccomp(2)) answers `lseek(SEEK_DATA)`.
pub fn report_only_holes() {
    // Offsets in `struct seccomp_data`: the system call number, and the low half of its third argument.
    let (number, whence) = (0, 16 + 2 * 8 + if cfg!(target_endian = "big") { 4 } else { 0 });
    let step = |code: u32, k: u32, jf: u8| sock_filter { code: code as u16, jt: 0, jf, k };
    let mut filter = [
        step(BPF_LD | BPF_W | BPF_ABS, number, 0),
        step(BPF_JMP | BPF_JEQ | BPF_K, SYS_lseek as u32, 3),
        step(BPF_LD | BPF_W | BPF_ABS, whence, 0),
        step(BPF_JMP | BPF_JEQ | BPF_K, libc::SEEK_DATA as u32, 1),
        step(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | libc::ENXIO as u32, 0),
        step(BPF_RET | BPF_K, SECCOMP_RET_ALLOW, 0),
    ];
    let program = sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: both calls change only this thread; the kernel copies the program, which outlives the call.
    #[allow(unsafe_code)]
    let is_set = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0
    };
    assert!(is_set, "filter system calls: {}", io::Error::last_os_error());
}
