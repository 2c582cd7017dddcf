//! What happens when somebody cuts a mapped file short: the system raises SIGBUS at the first read behind
//! its new end. There is no way on from there, but one line says why the program ends.

use std::ffi::CString;
use std::path::Path;
use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::SeqCst};

/// A mapped file: its first address, its length, and what to say.
struct Place {
    start: AtomicUsize,
    len: AtomicUsize,
    words: AtomicPtr<CString>,
}

/// Files beyond these end the program without a line.
static PLACES: [Place; 256] = [const {
    Place {
        start: AtomicUsize::new(0),
        len: AtomicUsize::new(0),
        words: AtomicPtr::new(ptr::null_mut()),
    }
}; 256];

/// A file's place in the list, as long as it lives.
#[derive(Debug)]
pub(crate) struct Watched(Option<usize>);

impl Watched {
    pub(crate) fn new(path: &Path, start: usize, len: usize) -> Watched {
        static HANDLER: Once = Once::new();
        HANDLER.call_once(install);
        let Some(at) = (0..PLACES.len()).find(|&at| {
            // Taken by length, so that no other thread takes it too; it counts from its start on.
            PLACES[at].len.compare_exchange(0, len, SeqCst, SeqCst).is_ok()
        }) else {
            return Watched(None);
        };
        let words = format!(
            "error: {}: became shorter while it was read; leave a file alone that is in use, and put a \
             new one in its place by renaming\n",
            path.display()
        );
        let words = Box::new(CString::new(words).unwrap_or_default());
        PLACES[at].words.store(Box::into_raw(words), SeqCst);
        PLACES[at].start.store(start, SeqCst);
        Watched(Some(at))
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let Some(at) = self.0 else { return };
        PLACES[at].start.store(0, SeqCst);
        // The words stay: another thread may be about to say them. They are few.
        PLACES[at].words.store(ptr::null_mut(), SeqCst);
        PLACES[at].len.store(0, SeqCst);
    }
}

fn install() {
    // SAFETY: the handler does only what a handler may; the action is whole.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = said as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut());
    }
}

/// Says which file it was and ends; what is no mapped file faults again without a handler.
extern "C" fn said(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the system gives a whole record; loads of atomics, `write`, `_exit` and `signal` may be
    // called here.
    unsafe {
        let at = (*info).si_addr() as usize;
        for place in &PLACES {
            let (start, words) = (place.start.load(SeqCst), place.words.load(SeqCst));
            if start == 0 || words.is_null() || at.wrapping_sub(start) >= place.len.load(SeqCst) {
                continue;
            }
            let words = (*words).as_bytes();
            libc::write(2, words.as_ptr().cast(), words.len());
            libc::_exit(1);
        }
        libc::signal(libc::SIGBUS, libc::SIG_DFL);
    }
}
