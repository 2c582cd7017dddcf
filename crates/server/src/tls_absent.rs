//! A build without TLS: a proxy before the server speaks it.

use std::convert::Infallible;
use std::io;
use std::path::Path;
use tokio::net::TcpStream;

/// There is no TLS.
#[derive(Debug, thiserror::Error)]
#[error(
    "this program was built without TLS; build it with the feature `tls`, or put a proxy before it"
)]
pub struct TlsError;

/// There is none.
#[derive(Debug, Clone)]
pub struct Tls(Infallible);

impl Tls {
    /// Says that there is none.
    ///
    /// # Errors
    /// Always.
    pub fn open(_cert: &Path, _key: &Path) -> Result<Self, TlsError> {
        Err(TlsError)
    }

    pub(crate) async fn accept(&self, _stream: TcpStream) -> io::Result<TcpStream> {
        match self.0 {}
    }
}
