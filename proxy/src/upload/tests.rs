use super::*;
use futures::{StreamExt, stream};
use http_body::Frame;
use http_body_util::StreamBody;
use std::{convert::Infallible, time::Duration};

const KIND: &[u8] = b"multipart/form-data; boundary=XX";
const FILE: &str = "--XX\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\n";
const MODEL: &str = "\r\n--XX\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nwhisper\r\n--XX--\r\n";

fn bounds() -> Bounds {
    Bounds {
        body: 8 << 20,
        pause: Duration::from_secs(1),
        memory: Shares::new(64 << 20),
        disk: Shares::new(64 << 20),
        folder: std::env::temp_dir(),
    }
}

/// A form with a file of `size` bytes before its model.
fn form(size: usize) -> Vec<u8> {
    let audio: Vec<u8> = (0..size).map(|at| (at * 31 % 251) as u8).collect();
    [FILE.as_bytes(), &audio, MODEL.as_bytes()].concat()
}

fn body(bytes: &[u8], piece: usize) -> impl Body<Data = Bytes, Error = Infallible> + Unpin + use<> {
    let pieces: Vec<_> = bytes.chunks(piece).map(|piece| Ok(Frame::data(Bytes::copy_from_slice(piece)))).collect();
    StreamBody::new(stream::iter(pieces))
}

async fn receive(upload: &Upload, bytes: &[u8], bounds: &Bounds) -> Result<(), Error> {
    upload.receive(&mut body(bytes, 50_000), Form::of(KIND).unwrap(), None, bounds).await
}

async fn all(body: hop::Body) -> Vec<u8> {
    body.collect().await.unwrap().to_bytes().to_vec()
}

#[tokio::test]
async fn what_is_read_is_what_came_however_often() {
    let bounds = bounds();
    for size in [0, 10, MEMORY - 1, MEMORY, MEMORY + 1, 3 << 20] {
        let sent = form(size);
        let upload = Upload::new(&Tenant::Owner, Some(sent.len() as u64), &bounds).unwrap();
        let early = upload.body(None);
        assert_eq!(Body::size_hint(&early).exact(), Some(sent.len() as u64));
        let (received, first) = tokio::join!(receive(&upload, &sent, &bounds), all(early));
        received.unwrap();
        assert!(first == sent && all(upload.body(None)).await == sent, "{size}");
        assert_eq!(upload.model().await.unwrap().as_str(), "whisper");
    }
    assert_eq!((bounds.memory.used(), bounds.disk.used()), (0, 0));
}

#[tokio::test]
async fn another_name_takes_the_models_place_even_before_that_has_come() {
    let bounds = bounds();
    let other = ModelId::new("another-name").unwrap();
    for size in [10, 2 << 20] {
        let sent = form(size);
        let upload = Upload::new(&Tenant::Owner, Some(sent.len() as u64), &bounds).unwrap();
        let early = upload.body(Some(&other));
        assert_eq!(Body::size_hint(&early).exact(), None, "where it stands isn't known");
        let mut pieces = body(&sent, 7001);
        let receiving = upload.receive(&mut pieces, Form::of(KIND).unwrap(), None, &bounds);
        let (received, early) = tokio::join!(receiving, all(early));
        received.unwrap();
        let late = upload.body(Some(&other));
        assert!(Body::size_hint(&late).exact().is_some());
        let late = all(late).await;
        assert!(early == late && late.ends_with(MODEL.replace("whisper", "another-name").as_bytes()));
        assert_eq!(late.len(), sent.len() + "another-name".len() - "whisper".len());
    }
}

#[tokio::test]
async fn the_model_is_known_before_the_rest_has_come() {
    let bounds = bounds();
    let upload = Upload::new(&Tenant::Owner, None, &bounds).unwrap();
    let first = Bytes::from_static(b"--XX\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nm\r\n--XX\r\n");
    let mut stuck =
        StreamBody::new(Box::pin(stream::iter([Ok::<_, Infallible>(Frame::data(first))]).chain(stream::pending())));
    let receiving = upload.receive(&mut stuck, Form::of(KIND).unwrap(), None, &bounds);
    let model = tokio::select! {
        model = upload.model() => model,
        _ = receiving => None,
    };
    assert_eq!(model.unwrap().as_str(), "m");
}

#[tokio::test]
async fn a_reader_of_a_broken_upload_sees_it_break() {
    let bounds = bounds();
    let sent = form(2 << 20);
    let upload = Upload::new(&Tenant::Owner, None, &bounds).unwrap();
    let cut = receive(&upload, &sent[..sent.len() - 4], &bounds).await;
    assert!(matches!(cut, Err(Error::Form(form::Error::Incomplete))));
    assert!(upload.body(None).collect().await.is_err());
    assert_eq!(upload.model().await, Some(ModelId::new("whisper").unwrap()));
}

#[tokio::test]
async fn every_bound_holds() {
    let bounds = Bounds { body: 3 << 20, disk: Shares::new(1 << 20), ..bounds() };
    let too_large = Upload::new(&Tenant::Owner, Some((3 << 20) + 1), &bounds);
    assert!(matches!(too_large, Err(body::Error::TooLarge(_))));
    let upload = || Upload::new(&Tenant::Owner, None, &bounds).unwrap();
    let roomy = Bounds { disk: Shares::new(64 << 20), ..bounds.clone() };
    let too_large = receive(&Upload::new(&Tenant::Owner, None, &roomy).unwrap(), &form(4 << 20), &roomy).await;
    assert!(matches!(too_large, Err(Error::Body(body::Error::TooLarge(_)))), "{too_large:?}");
    let no_disk = receive(&upload(), &form(5 << 19), &bounds).await;
    assert!(matches!(no_disk, Err(Error::Body(body::Error::NoDisk))), "{no_disk:?}");
    let gone = Bounds { folder: "/nonexistent/folder".into(), disk: Shares::new(64 << 20), ..bounds.clone() };
    let no_folder = receive(&Upload::new(&Tenant::Owner, None, &gone).unwrap(), &form(2 << 20), &gone).await;
    assert!(matches!(no_folder, Err(Error::Body(body::Error::Disk))), "{no_folder:?}");
    let unnamed = FILE.to_owned() + "x\r\n--XX--\r\n";
    let no_model = receive(&upload(), unnamed.as_bytes(), &bounds).await;
    assert!(matches!(no_model, Err(Error::Form(form::Error::NoModel))));
    let expected = ModelId::new("other").unwrap();
    let form_of = || Form::of(KIND).unwrap();
    let other = upload().receive(&mut body(&form(1), 9), form_of(), Some(&expected), &bounds).await;
    assert!(matches!(other, Err(Error::Form(form::Error::AnotherModel))));
    let mut stopped = StreamBody::new(stream::pending::<Result<Frame<Bytes>, Infallible>>());
    let quick = Bounds { pause: Duration::from_millis(30), ..bounds.clone() };
    let slow = upload().receive(&mut stopped, form_of(), None, &quick).await;
    assert!(matches!(slow, Err(Error::Body(body::Error::TooSlow))));
    assert_eq!((bounds.memory.used(), bounds.disk.used()), (0, 0));
}
