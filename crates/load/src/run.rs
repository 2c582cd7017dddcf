//! Runs a load: the only async code outside the server.

use crate::client::{self, Failure, Seen, ask};
use crate::plan::{Arrivals, Work};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// Warms up, then sends everything and waits for all answers, in the order in which they came.
///
/// # Errors
/// When the system gives no thread.
pub fn run(work: &Work) -> io::Result<Vec<Result<Seen, Failure>>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    Ok(runtime.block_on(async {
        let work = Arc::new(work.clone());
        for i in 0..work.warm_up {
            // What is not measured may fail: the measured ones then say why.
            drop(ask(&work, work.requests + i, Instant::now()).await);
        }
        match work.arrivals {
            Arrivals::Poisson { rate } => open(&work, rate).await,
            Arrivals::Clients { count } => closed(&work, count).await,
        }
    }))
}

/// The name of the first model that a server tells of.
///
/// # Errors
/// No server, or none that names a model.
pub fn first_model(url: &str, api_key: Option<&str>) -> Result<String, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| Failure::Connection(e.to_string()))?;
    runtime.block_on(client::first_model(url, api_key))
}

async fn open(work: &Arc<Work>, rate: f64) -> Vec<Result<Seen, Failure>> {
    let began = Instant::now();
    let mut all = JoinSet::new();
    for (i, at) in work.times(rate).into_iter().enumerate() {
        let work = Arc::clone(work);
        all.spawn(async move {
            tokio::time::sleep_until((began + Duration::from_secs_f64(at)).into()).await;
            ask(&work, i, began).await
        });
    }
    gathered(all).await
}

async fn closed(work: &Arc<Work>, count: usize) -> Vec<Result<Seen, Failure>> {
    let (began, next) = (Instant::now(), Arc::new(AtomicUsize::new(0)));
    let mut clients = JoinSet::new();
    for _ in 0..count {
        let (work, next) = (Arc::clone(work), Arc::clone(&next));
        clients.spawn(async move {
            let mut seen = Vec::new();
            loop {
                let i = next.fetch_add(1, Ordering::Relaxed);
                if i >= work.requests {
                    return seen;
                }
                seen.push(ask(&work, i, began).await);
            }
        });
    }
    let mut all = Vec::new();
    while let Some(done) = clients.join_next().await {
        all.extend(done.unwrap_or_default());
    }
    all
}

async fn gathered(mut all: JoinSet<Result<Seen, Failure>>) -> Vec<Result<Seen, Failure>> {
    let mut seen = Vec::new();
    while let Some(done) = all.join_next().await {
        seen.push(done.unwrap_or_else(|e| Err(Failure::Connection(e.to_string()))));
    }
    seen
}
