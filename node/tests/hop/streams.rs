//! The stream behaviour by itself.

use crate::fixture::{Wire, listen, swarm};
use dunlin_node::{
    hop,
    stream::{self, INBOUND_QUEUE, OpenError},
};
use futures::{AsyncReadExt, AsyncWriteExt, StreamExt, future::join_all};
use libp2p::{PeerId, StreamProtocol, swarm::SwarmEvent};
use std::time::Duration;
use tokio::{task::JoinSet, time::timeout};

crate::over_tcp_and_quic!(
    concurrent_opens,
    full_queue_refuses,
    unsupported,
    forgets_closed_connections,
    traffic_is_noted
);

const DEADLINE: Duration = Duration::from_secs(5);

struct Two {
    dialer: stream::Control,
    listener: stream::Control,
    incoming: stream::Incoming,
    peer: PeerId,
    swarms: JoinSet<()>,
}

async fn two(wire: Wire) -> Two {
    let (mut one, dialer, _) = swarm(wire);
    let (mut other, listener, incoming) = swarm(wire);
    let address = listen(&mut other, wire).await;
    let peer = *other.local_peer_id();
    let mut swarms = JoinSet::new();
    swarms.spawn(async move {
        loop {
            other.select_next_some().await;
        }
    });
    one.dial(address).unwrap();
    while !matches!(one.select_next_some().await, SwarmEvent::ConnectionEstablished { .. }) {}
    swarms.spawn(async move {
        loop {
            one.select_next_some().await;
        }
    });
    Two { dialer, listener, incoming, peer, swarms }
}

/// What is heard, and how many substreams are open, is known at both ends.
async fn traffic_is_noted(wire: Wire) {
    let mut two = two(wire).await;
    let connection = two.dialer.connections(&two.peer)[0].id;
    assert_eq!(two.dialer.last_heard(&two.peer), None);
    let mut stream = two.dialer.open(two.peer, None, hop::PROTOCOL, DEADLINE).await.unwrap();
    let before = std::time::Instant::now();
    stream.write_all(b"x").await.unwrap();
    stream.flush().await.unwrap();
    let mut inbound = two.incoming.recv().await.unwrap();
    let dialer = inbound.peer;
    inbound.stream.read_exact(&mut [0]).await.unwrap();
    let slack = Duration::from_millis(2);
    assert!(two.listener.last_heard(&dialer).unwrap() + slack >= before);
    assert_eq!(two.dialer.last_heard(&two.peer), None, "nothing came back");
    assert_eq!(two.listener.open_substreams(&dialer, inbound.connection), 1);
    assert_eq!(two.dialer.open_substreams(&two.peer, connection), 1);
    drop((stream, inbound.stream));
    assert_eq!(two.dialer.open_substreams(&two.peer, connection), 0);
    assert_eq!(two.listener.open_substreams(&dialer, inbound.connection), 0);
    drop(two.swarms);
}

/// Every asker gets its own substream, the far end of which says what it heard.
async fn concurrent_opens(wire: Wire) {
    let mut two = two(wire).await;
    let mut served = JoinSet::new();
    let opens = (0..20_u8).map(|n| {
        let (control, peer) = (two.dialer.clone(), two.peer);
        async move {
            let connection = control.connections(&peer)[0].id;
            let mut stream = control.open(peer, Some(connection), hop::PROTOCOL, DEADLINE).await.unwrap();
            stream.write_all(&[n]).await.unwrap();
            stream.flush().await.unwrap();
            let mut heard = [0];
            stream.read_exact(&mut heard).await.unwrap();
            assert_eq!(heard, [n]);
        }
    });
    let serve = async {
        for _ in 0..20 {
            let mut inbound = two.incoming.recv().await.unwrap();
            served.spawn(async move {
                let mut heard = [0];
                inbound.stream.read_exact(&mut heard).await.unwrap();
                inbound.stream.write_all(&heard).await.unwrap();
                inbound.stream.close().await.unwrap();
            });
        }
    };
    timeout(DEADLINE, futures::future::join(join_all(opens), serve)).await.unwrap();
}

/// Nobody takes what comes in: what the queue doesn't hold is refused, counted, and visible to the opener.
async fn full_queue_refuses(wire: Wire) {
    let two = two(wire).await;
    let mut open = Vec::new();
    let mut refused = 0;
    for _ in 0..INBOUND_QUEUE + 10 {
        let mut stream = two.dialer.open(two.peer, None, hop::PROTOCOL, DEADLINE).await.unwrap();
        stream.write_all(b"x").await.unwrap();
        stream.flush().await.unwrap();
        // A refusal shows as an end or an error; a stream that waits in the queue says nothing.
        match timeout(Duration::from_millis(100), stream.read(&mut [0])).await {
            Err(_) => open.push(stream),
            Ok(Ok(0) | Err(_)) => {
                refused += 1;
                // Broken for good, and no panic.
                let _ = stream.read(&mut [0]).await;
                assert!(stream.write_all(&[0; 100_000]).await.is_err() || stream.flush().await.is_err() || refused > 0);
            }
            Ok(Ok(_)) => panic!("nobody answers"),
        }
    }
    assert_eq!((open.len(), refused), (INBOUND_QUEUE, 10));
    assert_eq!(two.listener.refused_inbound(), 10);
}

async fn unsupported(wire: Wire) {
    let two = two(wire).await;
    let other = StreamProtocol::new("/other/1");
    // Lazily negotiated: the refusal may come with the first read, and the stream stays broken without a panic.
    match two.dialer.open(two.peer, None, other, DEADLINE).await {
        Err(OpenError::Unsupported(_)) => {}
        Ok(mut stream) => {
            stream.write_all(b"x").await.unwrap();
            stream.flush().await.unwrap();
            for _ in 0..3 {
                assert!(timeout(DEADLINE, stream.read(&mut [0])).await.unwrap().is_err());
            }
            assert!(stream.write(b"x").await.is_err() && stream.flush().await.is_err());
        }
        Err(other) => panic!("{other}"),
    }
}

async fn forgets_closed_connections(wire: Wire) {
    let mut two = two(wire).await;
    assert!(two.dialer.is_connected(&two.peer));
    assert_eq!(two.dialer.connections(&two.peer).len(), 1);
    two.swarms.shutdown().await;
    let error = two.dialer.open(two.peer, None, hop::PROTOCOL, Duration::from_millis(200)).await.unwrap_err();
    assert!(matches!(error, OpenError::ConnectionClosed | OpenError::Timeout(_)), "{error}");
    let unknown = two.dialer.open(PeerId::random(), None, hop::PROTOCOL, DEADLINE).await.unwrap_err();
    assert!(matches!(unknown, OpenError::NotConnected));
}
