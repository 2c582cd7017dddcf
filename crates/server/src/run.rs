//! A server from its first connection to its orderly end, on a runtime of its own.

use crate::app::App;
use crate::listen::listen;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{SignalKind, signal};

/// Listens until SIGTERM or SIGINT, then drains; a second signal ends the wait. `bound` is told of
/// each address. Says whether every request under way was answered.
///
/// # Errors
/// An address that is not to be had, or a system without threads or signals.
pub fn run(
    app: &Arc<App>,
    address: SocketAddr,
    bound: impl FnOnce(SocketAddr),
) -> io::Result<bool> {
    runtime()?.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let listener = TcpListener::bind(address).await?;
        bound(listener.local_addr()?);
        let (first, asked) = tokio::sync::oneshot::channel::<()>();
        let served = listen(Arc::clone(app), listener, async {
            drop(asked.await);
        });
        let mut served = std::pin::pin!(served);
        tokio::select! {
            done = &mut served => return done,
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        let _ = first.send(());
        tokio::select! {
            done = &mut served => done,
            _ = terminate.recv() => Ok(false),
            _ = interrupt.recv() => Ok(false),
        }
    })
}

/// Listens on a free port of this machine alone while `work` is done with its address, then drains.
///
/// # Errors
/// A system without such a port, or without threads.
pub fn during<T>(app: &Arc<App>, work: impl FnOnce(SocketAddr) -> T) -> io::Result<T> {
    let runtime = runtime()?;
    let listener = runtime.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))?;
    let address = listener.local_addr()?;
    let (end, asked) = tokio::sync::oneshot::channel::<()>();
    let served = runtime.spawn(listen(Arc::clone(app), listener, async {
        drop(asked.await);
    }));
    let done = work(address);
    let _ = end.send(());
    runtime.block_on(served).map_err(io::Error::other)??;
    Ok(done)
}

fn runtime() -> io::Result<Runtime> {
    Builder::new_multi_thread().worker_threads(1).thread_name("autoreg-http").enable_all().build()
}
