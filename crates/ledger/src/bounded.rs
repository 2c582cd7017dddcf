//! Work that may hold so much memory and no more.
//!
//! An allocation cannot be refused without ending the program. So work that a file from somewhere asks
//! for (a chat template that doubles a text forty times) runs in a thread of its own, and when that
//! thread would hold more than it may, the allocator lets it sleep for ever. Whoever waits for it goes
//! on; what the thread held is lost until the program ends.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;
use std::{panic, thread};

/// What work may take.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Bytes on the heap at a time. Counted where [`Allocator`] is the program's.
    pub held: usize,
    /// Bytes on the heap in all, given back or not: they take time to write.
    pub written: usize,
    /// From its start to its end, in which a stop of the whole program does not count.
    pub time: Duration,
}

/// Why there is no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beyond {
    /// It would have held, or written, more than it may.
    Memory,
    /// It took too long, and goes on.
    Time,
}

/// How often whoever waits looks whether the work sleeps.
const LOOK: Duration = Duration::from_millis(1);

/// Does work in a thread of its own, within bounds.
///
/// # Errors
/// [`Beyond`] where it went beyond them: then the thread and what it holds stay until the program ends,
/// so the same work should not be tried again.
///
/// # Panics
/// As the work does, and where the system has no more threads.
pub fn within<T: Send + 'static>(
    bounds: Bounds,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Beyond> {
    let meter = Arc::new(Meter::new(bounds));
    let counted = Arc::clone(&meter);
    let (done, result) = channel();
    let thread = thread::spawn(move || {
        let result = counted.count(work);
        // Whoever waited may have gone.
        let _ = done.send(result);
    });
    let mut looks = bounds.time.as_millis();
    loop {
        match result.recv_timeout(LOOK) {
            Ok(result) => return Ok(result),
            Err(RecvTimeoutError::Disconnected) => match thread.join() {
                Err(fault) => panic::resume_unwind(fault),
                Ok(()) => unreachable!("a thread that ended well has sent its result"),
            },
            Err(RecvTimeoutError::Timeout) if meter.beyond.load(Relaxed) => {
                return Err(Beyond::Memory);
            }
            Err(RecvTimeoutError::Timeout) if looks == 0 => return Err(Beyond::Time),
            Err(RecvTimeoutError::Timeout) => looks -= 1,
        }
    }
}

thread_local! {
    /// What counts this thread's memory; null where nothing does.
    static METER: Cell<*const Meter> = const { Cell::new(ptr::null()) };
}

struct Meter {
    bounds: Bounds,
    held: AtomicIsize,
    written: AtomicUsize,
    beyond: AtomicBool,
}

impl Meter {
    fn new(bounds: Bounds) -> Meter {
        let (held, written) = (AtomicIsize::new(0), AtomicUsize::new(0));
        Meter { bounds, held, written, beyond: AtomicBool::new(false) }
    }

    /// Does work whose memory is counted.
    fn count<T>(&self, work: impl FnOnce() -> T) -> T {
        /// Ends the counting, after a panic too.
        struct Counting;
        impl Drop for Counting {
            fn drop(&mut self) {
                METER.set(ptr::null());
            }
        }
        let _counting = Counting;
        METER.set(self);
        work()
    }

    /// Takes note of bytes that are asked for, and returns where there is room for them.
    fn take(&self, bytes: usize) {
        let held = self.held.fetch_add(bytes.cast_signed(), Relaxed) + bytes.cast_signed();
        let written = self.written.fetch_add(bytes, Relaxed) + bytes;
        if held > self.bounds.held.cast_signed() || written > self.bounds.written {
            self.beyond.store(true, Relaxed);
            loop {
                thread::sleep(Duration::from_secs(3600));
            }
        }
    }

    fn give(&self, bytes: usize) {
        self.held.fetch_sub(bytes.cast_signed(), Relaxed);
    }

    /// Of this thread, if it has one.
    fn with(then: impl FnOnce(&Meter)) {
        let meter = METER.get();
        if !meter.is_null() {
            // SAFETY: `count` holds the meter as long as this thread's pointer to it stands.
            then(unsafe { &*meter });
        }
    }
}

/// The system's allocator, which heeds the bounds of [`within`].
#[derive(Clone, Copy, Debug)]
pub struct Allocator;

// SAFETY: all is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Meter::with(|meter| meter.take(layout.size()));
        // SAFETY: as the caller's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        Meter::with(|meter| meter.take(layout.size()));
        // SAFETY: as the caller's.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, from: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        Meter::with(|meter| {
            meter.give(layout.size());
            meter.take(size);
        });
        // SAFETY: as the caller's.
        unsafe { System.realloc(from, layout, size) }
    }

    unsafe fn dealloc(&self, from: *mut u8, layout: Layout) {
        Meter::with(|meter| meter.give(layout.size()));
        // SAFETY: as the caller's.
        unsafe { System.dealloc(from, layout) }
    }
}
