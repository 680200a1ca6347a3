//! HTTPS: both versions of HTTP, and a certificate that is replaced.

use crate::{engine::Engine, mesh::Mesh};
use dunlin_proxy::TlsFiles;
use rcgen::{CertifiedKey, generate_simple_self_signed};
use std::{path::PathBuf, sync::Arc, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_rustls::{
    TlsConnector,
    client::TlsStream,
    rustls::{
        ClientConfig, RootCertStore,
        crypto::ring,
        pki_types::{CertificateDer, ServerName},
    },
};

fn write(files: &TlsFiles) -> CertificateDer<'static> {
    let CertifiedKey { cert, key_pair } = generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    std::fs::write(&files.certificate, cert.pem()).unwrap();
    std::fs::write(&files.key, key_pair.serialize_pem()).unwrap();
    cert.der().clone()
}

fn files(name: &str) -> TlsFiles {
    let folder = std::env::temp_dir().join(format!("dunlin-tls-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = |name: &str| -> PathBuf { folder.join(name) };
    TlsFiles { certificate: file("crt"), key: file("key") }
}

async fn connect(
    mesh: &Mesh,
    trusted: &CertificateDer<'static>,
    speaks: &[u8],
) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(trusted.clone()).unwrap();
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![speaks.to_vec()];
    let stream = TcpStream::connect(mesh.endpoint).await?;
    let name = ServerName::try_from("localhost").unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, stream).await
}

#[tokio::test]
async fn https_is_spoken_and_a_new_certificate_taken_in() {
    let files = files("new");
    let first = write(&files);
    let with = files.clone();
    let mesh = Mesh::with(move |config| config.tls = Some(with)).await;
    let engine = Engine::saying("{}");
    let _agent = mesh.agent(&["m"], 4, &engine).await;

    let mut stream = connect(&mesh, &first, b"http/1.1").await.unwrap();
    let body = r#"{"model":"m"}"#;
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        mesh.key,
        body.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("{}"), "{answer}");

    let stream = connect(&mesh, &first, b"h2").await.unwrap();
    let io = hyper_util::rt::TokioIo::new(stream);
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(hyper_util::rt::TokioExecutor::new(), io).await.unwrap();
    tokio::spawn(connection);
    let request = http::Request::post("https://localhost/v1/chat/completions")
        .header("authorization", format!("Bearer {}", mesh.key))
        .body(http_body_util::Full::new(bytes::Bytes::from(body)))
        .unwrap();
    assert_eq!(sender.send_request(request).await.unwrap().status(), 200);

    // Whoever speaks no TLS is not answered, and takes nobody's place.
    let mut plain = TcpStream::connect(mesh.endpoint).await.unwrap();
    plain.write_all(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let mut said = Vec::new();
    let _ = plain.read_to_end(&mut said).await;
    assert!(!said.starts_with(b"HTTP"), "{said:?}");

    let second = write(&files);
    for attempt in 0.. {
        if connect(&mesh, &second, b"h2").await.is_ok() {
            break;
        }
        assert!(attempt < 150, "the new certificate was never shown");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(connect(&mesh, &first, b"h2").await.is_err(), "the old one is shown no more");
}

#[test]
fn wrong_files_are_named() {
    let files = files("wrong");
    write(&files);
    let other = self::files("other");
    write(&other);
    let error = |files: TlsFiles| dunlin_proxy::tls::check(files).unwrap_err().to_string();
    let missing = TlsFiles { certificate: "/nonexistent/crt".into(), ..files.clone() };
    assert!(error(missing).contains("/nonexistent/crt"));
    let swapped = TlsFiles { certificate: files.key.clone(), key: files.certificate.clone() };
    assert!(error(swapped).contains("no PEM certificate"));
    let keyless = TlsFiles { key: files.certificate.clone(), ..files.clone() };
    assert!(error(keyless).contains("no PEM private key"));
    assert!(error(TlsFiles { key: other.key, ..files }).contains("one pair"));
}
