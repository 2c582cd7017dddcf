//! TLS by two files: a chain of certificates and its key, both PEM.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::server::TlsStream;

/// Why there is no TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file that is none, or not what it should be.
    #[error("{}: {what}; give a PEM file with {expected}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
        /// What should be in it.
        expected: &'static str,
    },
    /// Files that do not belong together.
    #[error("{} and {}: {what}; give a certificate and its own key", cert.display(), key.display())]
    Pair {
        /// The certificates.
        cert: PathBuf,
        /// The key.
        key: PathBuf,
        /// What is wrong with them.
        what: String,
    },
}

/// A server's side of TLS.
#[derive(Clone)]
pub struct Tls(TlsAcceptor);

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls")
    }
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// [`TlsError`], with the file at fault.
    pub fn open(cert: &Path, key: &Path) -> Result<Self, TlsError> {
        let wrong = |path: &Path, expected: &'static str, what: String| TlsError::File {
            path: path.to_owned(),
            what,
            expected,
        };
        let certificates = "certificates, the server's own first";
        let chain = CertificateDer::pem_file_iter(cert)
            .and_then(Iterator::collect::<Result<Vec<_>, _>>)
            .map_err(|e| wrong(cert, certificates, e.to_string()))?;
        if chain.is_empty() {
            return Err(wrong(cert, certificates, "holds no certificate".to_owned()));
        }
        let own = PrivateKeyDer::from_pem_file(key)
            .map_err(|e| wrong(key, "a private key", e.to_string()))?;
        let pair = |e: tokio_rustls::rustls::Error| TlsError::Pair {
            cert: cert.to_owned(),
            key: key.to_owned(),
            what: e.to_string(),
        };
        let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(pair)?
            .with_no_client_auth()
            .with_single_cert(chain, own)
            .map_err(pair)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self(TlsAcceptor::from(Arc::new(config))))
    }

    /// The handshake of a connection.
    ///
    /// # Errors
    /// A client that speaks no TLS, or another.
    pub(crate) async fn accept(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        self.0.accept(stream).await
    }
}
