//! Signals: the first asks for an orderly stop, a second of either kind stops at once.

use crate::error::CliError;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};

/// Where the number of the first signal will stand; 0 until then.
pub fn on_signals() -> Result<Arc<AtomicUsize>, CliError> {
    let stop = Arc::new(AtomicUsize::new(0));
    let fail = |e| CliError::failed(format!("signals cannot be watched: {e}"));
    let second = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        let code = 128 + signal;
        flag::register_conditional_shutdown(signal, code, Arc::clone(&second)).map_err(fail)?;
        flag::register(signal, Arc::clone(&second)).map_err(fail)?;
        flag::register_usize(signal, Arc::clone(&stop), signal as usize).map_err(fail)?;
    }
    Ok(stop)
}
