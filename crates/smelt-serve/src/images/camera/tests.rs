//! Cameras of all kinds, each a thread of the test: what comes of them is a film or one line, which never tells who asked.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::sync::{Arc, mpsc};
use std::thread;

use smelt_random::Random;

use super::units::tests::packet;
use super::*;

const SDP: &str = "v=0\r\na=control:*\r\nm=video 0 RTP/AVP 96\r\na=rtpmap:96 H264/90000\r\n\
    a=fmtp:96 packetization-mode=1;sprop-parameter-sets=Z0IAHg==,aM4=\r\na=control:track1\r\n";
const TCP: &str = "Session: 7;timeout=60\r\nTransport: RTP/AVP/TCP;unicast;interleaved=2-3\r\n";
const DIGEST: &str = "WWW-Authenticate: Basic realm=\"cam\"\r\nWWW-Authenticate: Digest realm=\"cam\", nonce=\"1f\"\r\n";

/// One end of a connection.
struct Camera {
    stream: BufReader<TcpStream>,
    /// All that was asked.
    asked: Vec<String>,
}

impl Camera {
    /// The next question; empty where nobody asks any more.
    fn hear(&mut self) -> String {
        let mut question = String::new();
        while !question.ends_with("\r\n\r\n") {
            if self.stream.read_line(&mut question).unwrap_or(0) == 0 {
                break;
            }
        }
        self.asked.push(question.clone());
        question
    }

    /// Sends bytes as they are; whether anybody takes them.
    fn send(&mut self, bytes: &[u8]) -> bool {
        self.stream.get_mut().write_all(bytes).is_ok()
    }

    /// Hears a question, and answers it.
    fn answer(&mut self, status: &str, headers: &str, body: &str) {
        let question = self.hear();
        let number = question.lines().find_map(|line| line.strip_prefix("CSeq: ")).unwrap();
        let length = body.len();
        let text = format!(
            "RTSP/1.0 {status}\r\nCSeq: {number}\r\n{headers}Content-Length: {length}\r\n\r\n{body}"
        );
        self.send(text.as_bytes());
    }

    /// As all cameras do before pictures come.
    fn play(&mut self, sdp: &str) {
        self.answer("200 OK", "", sdp);
        self.answer("200 OK", TCP, "");
        self.answer("200 OK", "", "");
    }

    fn packet(&mut self, channel: u8, bytes: &[u8]) -> bool {
        let length = (bytes.len() as u16).to_be_bytes();
        self.send(&[&[b'$', channel, length[0], length[1]], bytes].concat())
    }
}

/// What comes of a camera that does so, and what it was asked.
fn recorded(
    act: impl FnOnce(&mut Camera) + Send + 'static,
) -> (Result<Vec<u8>, RemoteError>, Vec<String>) {
    let asker = Arc::new(());
    recorded_for(&Errand::new(Arc::downgrade(&asker)), act)
}

fn recorded_for(
    errand: &Errand,
    act: impl FnOnce(&mut Camera) + Send + 'static,
) -> (Result<Vec<u8>, RemoteError>, Vec<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let (sender, asked) = mpsc::channel();
    thread::spawn(move || {
        let mut camera =
            Camera { stream: BufReader::new(listener.accept().unwrap().0), asked: Vec::new() };
        act(&mut camera);
        _ = camera.stream.get_ref().shutdown(std::net::Shutdown::Write);
        while !camera.hear().is_empty() {}
        _ = sender.send(camera.asked);
    });
    let judge = |host: &str, port| {
        assert_eq!((host, port), ("cam.test", 1554));
        Ok(vec![at])
    };
    let film = record("rtsp://me:secret@cam.test:1554/live", judge, errand);
    let asked = asked.recv().unwrap();
    assert!(!asked.concat().contains("secret"), "{asked:?}");
    (film, asked)
}

/// What the one line says that comes of a camera that does so.
fn why(act: impl FnOnce(&mut Camera) + Send + 'static) -> String {
    let error = recorded(act).0.unwrap_err().to_string();
    assert!(
        !error.contains("secret") && !error.contains("me:") && !error.contains('\n'),
        "{error}"
    );
    error
}

#[test]
fn a_camera_is_recorded() {
    let (film, asked) = recorded(|camera| {
        camera.answer("401 Unauthorized", DIGEST, "");
        camera.answer("200 OK", "Content-Base: rtsp://10.9.9.9:1/live/\r\n", SDP);
        camera.answer("200 OK", TCP, "");
        // Some send before they have answered.
        camera.packet(2, &packet(1, 9000, true, &[0x65, b'o', b'n', b'e']));
        camera.answer("200 OK", "", "");
        camera.send(b"OPTIONS * RTSP/1.0\r\nCSeq: 1\r\n\r\n");
        camera.packet(3, &[0x80, 200, 0, 1, 0, 0, 0, 0]);
        camera.packet(2, &packet(2, 18000, true, &[0x41, b't', b'w', b'o']));
        camera.packet(3, &[0x80, 200, 0, 0, 0x81, 203, 0, 1, 0, 0, 0, 0]);
    });
    let film = film.unwrap();
    assert!(film.starts_with(&[0x1a, 0x45, 0xdf, 0xa3]));
    assert!(film.windows(12).any(|bytes| bytes == b"\x81\0\0\x80\0\0\0\x04\x65one"));
    assert!(film.ends_with(b"\x81\0\x64\0\0\0\0\x04\x41two"));
    let first: Vec<_> = asked.iter().filter_map(|text| text.lines().next()).collect();
    let live = "rtsp://cam.test:1554/live";
    let (base, track) = ("rtsp://10.9.9.9:1/live/", "rtsp://10.9.9.9:1/live/track1");
    assert_eq!(
        first,
        [
            format!("DESCRIBE {live} RTSP/1.0"),
            format!("DESCRIBE {live} RTSP/1.0"),
            format!("SETUP {track} RTSP/1.0"),
            format!("PLAY {base} RTSP/1.0"),
            format!("TEARDOWN {base} RTSP/1.0"),
        ]
    );
    assert!(!asked[0].contains("Authorization"));
    // HA1 = MD5(me:cam:secret), HA2 = MD5(DESCRIBE:rtsp://cam.test:1554/live), MD5(HA1:1f:HA2).
    let login = camera_address::Login { user: "me".to_owned(), password: "secret".to_owned() };
    let mut challenge =
        login::Challenge::best(["Digest realm=\"cam\", nonce=\"1f\""].into_iter()).unwrap();
    let expect = challenge.answer(&login, "DESCRIBE", live, "");
    assert!(asked[1].contains(&expect), "{}", asked[1]);
    assert!(asked[2..5].iter().all(|text| text.contains("Authorization: Digest ")));
    assert!(asked[3].contains("Session: 7\r\n"));
}

#[test]
fn a_camera_that_never_ends_is_recorded_for_some_seconds() {
    let (film, _) = recorded(|camera| {
        camera.play(SDP);
        let frame =
            |number: u16| packet(number, u32::from(number) * 3000, true, &[0x65, number as u8]);
        let mut number = 0;
        while camera.packet(2, &frame(number)) {
            number = number.wrapping_add(1);
        }
    });
    let film = film.unwrap();
    assert!(film.ends_with(&[0x65, 119]), "30 a second");
}

#[test]
fn a_redirect_goes_nowhere() {
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let location = format!("Location: rtsp://{}/\r\n", other.local_addr().unwrap());
    for at in 0..3 {
        let location = location.clone();
        let why = why(move |camera| {
            (0..at).for_each(|at| camera.answer("200 OK", ["", TCP][at], [SDP, ""][at]));
            camera.answer("302 Moved", &location, "");
        });
        assert!(why.contains("elsewhere"), "{why}");
    }
    // Nor does a description that names another host.
    let elsewhere = SDP.replace("track1", &format!("rtsp://{}/x", other.local_addr().unwrap()));
    let why = why(move |camera| {
        camera.answer("200 OK", &location.replace("Location", "Content-Base"), &elsewhere);
        camera.answer("404 Not Found", "", "");
    });
    assert!(why.contains("SETUP with status 404"), "{why}");
    other.set_nonblocking(true).unwrap();
    assert!(other.accept().is_err(), "nobody came");
}

#[test]
fn who_is_not_let_in_is_told() {
    let refused = why(|camera| (0..2).for_each(|_| camera.answer("401 Unauthorized", DIGEST, "")));
    assert!(refused.contains("refuses this user and password"), "{refused}");
    let unknown =
        why(|camera| camera.answer("401 Unauthorized", "WWW-Authenticate: Bearer\r\n", ""));
    assert!(unknown.contains("kind of login"), "{unknown}");
    let asker = Arc::new(());
    let errand = Errand::new(Arc::downgrade(&asker));
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let nobody = record("rtsp://me:secret@cam/", |_, _| Ok(vec![closed]), &errand).unwrap_err();
    assert!(nobody.to_string().contains("refused"), "{nobody}");
}

#[test]
fn cameras_that_cannot_be_read_are_told() {
    let motion = SDP.replace("H264", "MP4V-ES");
    let says = [
        (
            why(move |camera| camera.answer("200 OK", "", &motion)),
            "sends MP4V-ES; H.264 and H.265 are read",
        ),
        (why(|camera| camera.answer("200 OK", "", "")), "sends no pictures"),
        (
            why(|camera| {
                camera.answer("200 OK", "", SDP);
                camera.answer(
                    "200 OK",
                    "Session: 7\r\nTransport: RTP/AVP;unicast;client_port=1-2\r\n",
                    "",
                );
            }),
            "does not send by TCP",
        ),
        (why(|camera| drop(camera.hear())), "hangs up at DESCRIBE"),
        (why(|camera| camera.play(SDP)), "hangs up before it has sent a whole picture"),
    ];
    for (why, expect) in says {
        assert!(why.contains(expect), "{why}");
    }
}

#[test]
fn what_is_too_long_is_not_taken() {
    let described = why(|camera| {
        camera.hear();
        camera.send(b"RTSP/1.0 200 OK\r\nCSeq: 1\r\nContent-Length: 104857600\r\n\r\n");
        while camera.send(&[b'v'; 1 << 16]) {}
    });
    assert!(described.contains("more than the 65536 bytes"), "{described}");
    let headed = why(|camera| {
        camera.hear();
        while camera.send(b"RTSP/1.0 200 OK ") {}
    });
    assert!(headed.contains("no RTSP"), "{headed}");
    let pictured = why(|camera| {
        camera.play(SDP);
        let mut number = 0;
        let part = |number| packet(number, 0, false, &[&[0x65][..], &[7; 60_000]].concat());
        while camera.packet(2, &part(number)) {
            number += 1;
        }
    });
    assert!(pictured.contains("a picture of more than 16 MiB"), "{pictured}");
    let (all, _) = recorded(|camera| {
        camera.play(SDP);
        while camera.packet(9, &[0; 60_000]) {}
    });
    assert!(matches!(all, Err(RemoteError::TooLong)), "{:?}", all.map(|film| film.len()));
}

#[test]
fn a_camera_that_drips_is_not_waited_for() {
    let begin = Instant::now();
    let (sender, left) = mpsc::channel();
    let late = why(move |camera| {
        camera.hear();
        // Until nobody takes it, or much longer than it is waited for.
        let drips = (0..300).take_while(|_| {
            thread::sleep(Duration::from_millis(100));
            camera.send(b"R")
        });
        _ = sender.send((drips.count(), begin.elapsed()));
    });
    assert!(late.contains("does not answer DESCRIBE within"), "{late}");
    let (drips, time) = left.recv().unwrap();
    assert!(drips > 20 && time < Duration::from_secs(20), "{drips} in {time:?}");
    let asker = Arc::new(());
    let errand = Errand::new(Arc::downgrade(&asker));
    thread::spawn(move || {
        thread::sleep(Duration::from_millis(200));
        drop(asker);
    });
    let (left, _) = recorded_for(&errand, |camera| {
        camera.play(SDP);
        while camera.packet(2, &packet(1, 0, false, &[0x41])) {
            thread::sleep(Duration::from_millis(20));
        }
    });
    assert!(matches!(left, Err(RemoteError::Left)), "{left:?}");
}

#[test]
fn a_camera_that_takes_nothing_is_left() {
    let asker = Arc::new(());
    let errand = Errand::new(Arc::downgrade(&asker));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let place = camera_address::CameraAddress::read("rtsp://cam.test/").unwrap();
    let mut line = Line::connect(&[at], &place, &errand).unwrap();
    let _camera = listener.accept().unwrap();
    thread::spawn(move || {
        thread::sleep(Duration::from_millis(300));
        drop(asker);
    });
    let begin = Instant::now();
    // More than the system keeps for both ends.
    let more = "X: a\r\n".repeat(8 << 20);
    let left = line.ask("DESCRIBE", &place.url, &more);
    assert!(matches!(left, Err(RemoteError::Left)), "{left:?}");
    assert!(begin.elapsed() < Duration::from_secs(4), "{:?}", begin.elapsed());
}

#[test]
fn a_camera_is_judged_as_any_other_host() {
    use super::super::remote::{Reach, Remote};
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let asker = Arc::new(());
    let get = |reach, url: &str| Remote::new(reach).get(url, &Errand::new(Arc::downgrade(&asker)));
    for host in ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]"] {
        let got = get(Reach::Public, &format!("rtsp://me:secret@{host}:{}/", at.port()));
        assert!(matches!(got, Err(RemoteError::Private)), "{host}: {got:?}");
    }
    listener.set_nonblocking(true).unwrap();
    assert!(listener.accept().is_err(), "nobody came");
    assert!(matches!(get(Reach::Public, "rtsp://a b/"), Err(RemoteError::NoCamera)));
    listener.set_nonblocking(false).unwrap();
    let refuses = thread::spawn(move || {
        let (mut stream, from) = listener.accept().unwrap();
        let mut asked = [0; 512];
        let bytes = stream.read(&mut asked).unwrap();
        stream.write_all(b"RTSP/1.0 404 Not Found\r\nCSeq: 1\r\n\r\n").unwrap();
        (from.ip(), String::from_utf8_lossy(&asked[..bytes]).into_owned())
    });
    let url = format!("rtsp://me:secret@localhost:{}/a", at.port());
    let got = get(Reach::Only(IpAddr::V4(Ipv4Addr::LOCALHOST)), &url).unwrap_err();
    assert_eq!(got.to_string(), "cannot fetch it: the camera answers DESCRIBE with status 404");
    let (_, asked) = refuses.join().unwrap();
    let first = format!("DESCRIBE rtsp://localhost:{}/a RTSP/1.0\r\n", at.port());
    assert!(asked.starts_with(&first), "{asked}");
}

/// Bytes that follow from a seed.
fn noise(seed: u64) -> impl FnMut() -> u8 {
    let mut random = Random::new(seed);
    move || random.next_u64() as u8
}

/// Whether lengths and NAL units fill a picture to its end.
fn is_whole(mut bytes: &[u8]) -> bool {
    while let Some((length, rest)) = bytes.split_first_chunk() {
        let Some(rest) = rest.get(u32::from_be_bytes(*length) as usize..) else { return false };
        bytes = rest;
    }
    bytes.is_empty()
}

#[test]
fn noise_makes_no_broken_picture() {
    for codec in [units::Codec::H264, units::Codec::H265] {
        let mut byte = noise(7);
        let mut units = Units::new(codec, Sets::new(codec, Vec::new()));
        let (mut whole, mut clip) = (0, Clip::new(codec, 90_000));
        for number in 0..50_000_u32 {
            let sent: Vec<u8> = (0..byte() % 24).map(|_| byte()).collect();
            let sent = packet(number as u16, number / 2, number % 2 == 1, &sent);
            let unit = units.push(&Packet::read(&sent).unwrap()).unwrap();
            for unit in unit.iter().filter(|unit| !unit.is_damaged) {
                assert!(is_whole(&unit.bytes), "{unit:?}");
                whole += 1;
            }
            let _ = unit.is_some_and(|unit| clip.take(&unit, &units.sets));
        }
        assert!(whole > 100 && clip.film().is_some(), "{codec:?}: {whole} whole pictures");
    }
}

#[test]
fn noise_between_messages_ends_or_is_passed_over() {
    let words: [&[u8]; 6] = [
        b"RTSP/1.0 200 OK\r\n",
        b"\r\n",
        b"Content-Length: 3\r\n",
        b"$\0\0\x02",
        b"a:",
        b"OPTIONS * RTSP/1.0",
    ];
    let mut byte = noise(11);
    let mut ends = [0, 0];
    for _ in 0..20_000 {
        let mut sent = bytes::BytesMut::new();
        for _ in 0..8 {
            let word = byte() as usize % (words.len() + 1);
            sent.extend_from_slice(words.get(word).copied().unwrap_or(&[byte(), byte()]));
        }
        // Each message takes something away, or there would be no end.
        let end = (0..=sent.len()).find_map(|_| {
            message::next(&mut sent).map(|it| it.is_none().then_some(())).transpose()
        });
        ends[usize::from(end.expect("an end").is_ok())] += 1;
        let _ = description::track(&String::from_utf8_lossy(&sent), "rtsp://cam/");
    }
    assert!(ends.iter().all(|count| *count > 1000), "{ends:?}");
}
