//! Connections: their number, the time for their heads, and the orderly end.

use crate::app::App;
use crate::routes::router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout, timeout_at};

/// How long a client may take to send the head of a request.
const HEAD_TIME: Duration = Duration::from_secs(30);

/// Answers until `stop` resolves, then drains: requests under way finish, new ones get 503. Says
/// whether all of them finished within the time for it.
///
/// # Errors
/// None but of the system.
pub async fn listen(
    app: Arc<App>,
    listener: TcpListener,
    stop: impl Future<Output = ()>,
) -> io::Result<bool> {
    let router = router(Arc::clone(&app));
    let places = Arc::new(Semaphore::new(app.options.connections));
    let (closing, closed) = watch::channel(false);
    let mut connections = JoinSet::new();
    let mut stop = std::pin::pin!(stop);
    let mut until: Option<Instant> = None;
    loop {
        let drained = async {
            match until {
                None => std::future::pending().await,
                Some(until) => {
                    while app.under_way() > 0 && Instant::now() < until {
                        sleep(Duration::from_millis(10)).await;
                    }
                }
            }
        };
        tokio::select! {
            () = &mut stop, if until.is_none() => {
                app.drain();
                until = Some(Instant::now() + app.options.drain_time);
            }
            () = drained => break,
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => {
                // A client that is gone before it was accepted is nobody's fault; a shortage of
                // file numbers passes when others leave.
                let Ok((stream, _)) = accepted else {
                    sleep(Duration::from_millis(20)).await;
                    continue;
                };
                let Ok(place) = Arc::clone(&places).try_acquire_owned() else { continue };
                let (router, closed) = (router.clone(), closed.clone());
                let tls = app.options.tls.clone();
                connections.spawn(async move {
                    // Small pieces must not wait for each other.
                    drop(stream.set_nodelay(true));
                    match tls {
                        None => serve(stream, router, closed).await,
                        // Who does not speak TLS, or too slowly, is gone.
                        Some(tls) => {
                            if let Ok(Ok(stream)) = timeout(HEAD_TIME, tls.accept(stream)).await {
                                serve(stream, router, closed).await;
                            }
                        }
                    }
                    drop(place);
                });
            }
        }
    }
    let finished = app.under_way() == 0;
    drop(listener);
    // No connection is left where nobody listens.
    let _ = closing.send(true);
    let end = Instant::now() + Duration::from_secs(5);
    while let Ok(Some(_)) = timeout_at(end, connections.join_next()).await {}
    Ok(finished)
}

async fn serve<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    router: axum::Router,
    mut closed: watch::Receiver<bool>,
) {
    let service = TowerToHyperService::new(router);
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME)
        .max_buf_size(64 << 10)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    tokio::select! {
        _ = &mut connection => return,
        _ = closed.changed() => connection.as_mut().graceful_shutdown(),
    }
    drop(connection.await);
}
