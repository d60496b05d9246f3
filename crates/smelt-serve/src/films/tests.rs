use std::fs;
use std::process::Command;
use std::sync::LazyLock;

use smelt_random::Random;
use smelt_runtime::deployment::ModelFamily;
use smelt_runtime::image::{Wanted, chosen};

use super::*;

/// Where there is no `ffmpeg`, nothing is tested, and that is said.
static HAS_FFMPEG: LazyLock<bool> = LazyLock::new(|| {
    let has = Command::new("ffmpeg").arg("-version").output().is_ok();
    if !has {
        println!("not run: no ffmpeg here");
    }
    has
});

/// Pixels of a frame of all that is made here, where it is of a usual size.
const PIXELS: u64 = 640 * 480;

/// What `ffmpeg` writes that is told all this; `NAME` among the words is where.
fn made(words: &str, name: &str) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    let words =
        words.split(' ').map(|word| if word == "NAME" { path.to_str().unwrap() } else { word });
    let output = Command::new("ffmpeg")
        .args(["-v", "error", "-nostdin", "-y"])
        .args(words)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    fs::read(path).unwrap()
}

/// Ten seconds at 30 frames a second, of which each tells its number by how bright it is.
fn counting(codec: &str, name: &str) -> Vec<u8> {
    made(
        &format!(
            "-f lavfi -i color=black:size=64x48:rate=30:duration=10,format=gray,geq=lum=16+N/2 {codec} NAME"
        ),
        name,
    )
}

const X264: &str = "-c:v libx264 -preset ultrafast -crf 1 -bf 2 -pix_fmt yuv420p";

fn read(bytes: &[u8], choose: impl Fn(Reel) -> Vec<usize>) -> Result<Film, FilmError> {
    let Some(kind) = Kind::of(bytes) else {
        return Err(FilmError::Empty(Some("no film".to_owned())));
    };
    let films = Films::new(vec!["ffmpeg".into()]);
    films.read((kind, bytes), PIXELS, choose, &|| true)
}

fn eight(reel: Reel) -> Vec<usize> {
    chosen(ModelFamily::INTERNVL3, reel, Wanted { fps: None, frames: None, frames_max: 8 })
}

#[test]
fn the_chosen_frames_are_seen_in_every_container() {
    if !*HAS_FFMPEG {
        return;
    }
    let of_qwen = |reel| {
        chosen(ModelFamily::QWEN3_VL, reel, Wanted { fps: None, frames: None, frames_max: 32 })
    };
    let expect = of_qwen(Reel { frames: 300, fps: 30.0 });
    let films = [
        (X264.to_owned(), "last.mp4"),
        (format!("{X264} -movflags +faststart"), "first.mp4"),
        (format!("{X264} -movflags +frag_keyframe+empty_moov"), "fragments.mp4"),
        (X264.to_owned(), "a.mkv"),
        ("-c:v libvpx -b:v 4M -deadline realtime".to_owned(), "a.webm"),
        (format!("{X264} -output_ts_offset 3"), "late.mkv"),
    ];
    for (codec, name) in films {
        let film = read(&counting(&codec, name), of_qwen).unwrap();
        let numbers = film.frames.iter().map(|(_, frame)| (f64::from(frame.rgb()[0]) - 16.0) * 2.0);
        for ((seen, (time, _)), number) in numbers.zip(&film.frames).zip(&expect) {
            assert!((seen - *number as f64).abs() < 6.0, "{name}: {seen} for {number}");
            assert!((time - *number as f64 / 30.0).abs() < 0.002, "{name}: {time} for {number}");
        }
        assert_eq!(film.frames.len(), expect.len(), "{name}");
        assert!((film.fps - 2.0).abs() < 0.01, "{name}: {}", film.fps);
    }
}

#[test]
fn pixels_are_those_of_ffmpeg_itself() {
    if !*HAS_FFMPEG {
        return;
    }
    let film =
        made(&format!("-f lavfi -i testsrc2=size=320x240:rate=5:duration=1 {X264} NAME"), "a.mp4");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.mp4");
    fs::write(&path, &film).unwrap();
    let mut own = Command::new("ffmpeg");
    own.args(["-v", "error", "-nostdin", "-i"]).arg(path);
    let own = own.args(["-pix_fmt", "rgb24", "-f", "rawvideo", "pipe:1"]).output().unwrap().stdout;
    let seen = read(&film, |reel| (0..reel.frames).collect()).unwrap();
    let seen: Vec<u8> = seen.frames.iter().flat_map(|(_, frame)| frame.rgb().to_vec()).collect();
    assert!(seen == own, "{} and {} bytes", seen.len(), own.len());
}

/// What came of a film that was made to do harm, for a person.
fn told(name: &str, bytes: &[u8]) -> String {
    let told = match read(bytes, eight) {
        Ok(film) => {
            assert!((1..=8).contains(&film.frames.len()), "{name}");
            let sizes: Vec<_> = film.frames.iter().map(|(_, frame)| frame.size()).collect();
            assert!(
                sizes.iter().all(|size| *size == sizes[0] && size.pixels() as u64 <= PIXELS),
                "{name}"
            );
            assert!(film.fps.is_finite() && film.fps > 0.0, "{name}");
            assert!(film.frames.iter().all(|(time, _)| time.is_finite()), "{name}");
            format!("{} {}x{}", sizes.len(), sizes[0].width, sizes[0].height)
        }
        Err(FilmError::Empty(_)) => "empty".to_owned(),
        Err(error) => error.to_string(),
    };
    assert!(!told.contains('\n'), "{name}: {told}");
    told
}

/// `bytes` with what stands behind `mark` in the place of what stood there.
fn forged(mut bytes: Vec<u8>, mark: &[u8], skip: usize, new: &[u8]) -> Vec<u8> {
    let at =
        bytes.windows(mark.len()).position(|window| window == mark).unwrap() + mark.len() + skip;
    bytes[at..at + new.len()].copy_from_slice(new);
    bytes
}

/// The matrix of a film that is shown turned by a quarter, as phones write it.
const TURNED: [u8; 20] = [0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 0, 0, 0, 0];

#[test]
fn films_made_to_do_harm_are_seen_or_refused() {
    if !*HAS_FFMPEG {
        return;
    }
    let test = |more: &str, name: &str| {
        made(&format!("-f lavfi -i testsrc=size=64x48:rate=10:duration=2 {more} NAME"), name)
    };
    let plain = test(X264, "a.mp4");
    let secret = "file:///etc/passwd";
    let text = |text: String| text.into_bytes();
    let boxed = |kind: &[u8], inner: &[u8]| {
        [&(inner.len() as u32 + 8).to_be_bytes()[..], kind, inner].concat()
    };
    let mut nested = Vec::new();
    for _ in 0..20_000 {
        nested =
            [&u32::MAX.to_be_bytes()[..], b"moov", &nested[..nested.len().min(64 << 10)]].concat();
    }
    let hostile = [
        ("a playlist", text(format!("#EXTM3U\n#EXTINF:1,\n{secret}\n#EXT-X-ENDLIST\n")), "empty"),
        ("a list to concatenate", text(format!("ffconcat version 1.0\nfile {secret}\n")), "empty"),
        ("a session", text("v=0\nc=IN IP4 127.0.0.1\nm=video 9 RTP/AVP 96\n".to_owned()), "empty"),
        (
            "a playlist that says ftyp",
            [&b"\0\0\0\x08ftyp"[..], b"#EXTM3U\nfile:///etc/passwd\n"].concat(),
            "empty",
        ),
        ("nothing", Vec::new(), "empty"),
        ("a head alone", boxed(b"ftyp", b"isom\0\0\x02\0"), "empty"),
        ("boxes in boxes", nested, "empty"),
        ("a cut file", plain[..plain.len() / 3].to_vec(), "empty"),
        (
            "a cut film",
            {
                let film = test(X264, "a.mkv");
                film[..film.len() / 2].to_vec()
            },
            " 64x48",
        ),
        ("65535 x 65535", forged(plain.clone(), b"avc1", 24, &[0xff; 4]), ""),
        (
            "a length of years",
            forged(plain.clone(), b"mvhd", 16, &[0x7f, 0xff, 0xff, 0xff]),
            "8 64x48",
        ),
        (
            "frames hours apart",
            made(
                "-f lavfi -i testsrc=size=64x48:rate=1/8000:duration=24000 -c:v mjpeg -pix_fmt yuvj420p NAME",
                "years.mkv",
            ),
            "longer than 4 hours",
        ),
        (
            "a billion a second",
            forged(plain.clone(), b"mdhd", 12, &1_000_000_000_u32.to_be_bytes()),
            "8 64x48",
        ),
        (
            "before zero",
            test(&format!("{X264} -output_ts_offset -100 -avoid_negative_ts disabled"), "a.mkv"),
            " 64x48",
        ),
        ("sound alone", made("-f lavfi -i sine=duration=1 -c:a aac NAME", "a.mp4"), "empty"),
        (
            "a cover alone",
            made(
                "-f lavfi -i sine=duration=1 -f lavfi -i testsrc=size=64x48:duration=0.04 -map 0 -map 1 -c:a aac -c:v mjpeg -pix_fmt yuvj420p -disposition:v attached_pic NAME",
                "a.mp4",
            ),
            "empty",
        ),
        (
            "no colour below",
            test("-vf format=yuva420p -c:v libvpx -auto-alt-ref 0", "a.webm"),
            "8 64x48",
        ),
        (
            "a speed that changes",
            test(&format!("-vf setpts=N*N/100/TB -vsync passthrough {X264}"), "a.mkv"),
            " 64x48",
        ),
        ("turned", forged(plain.clone(), b"tkhd", 40, &TURNED), "8 48x64"),
        ("ten bits", test("-c:v libx264 -pix_fmt yuv420p10le", "a.mp4"), "8 64x48"),
        (
            "one frame",
            made(
                &format!("-f lavfi -i testsrc=size=64x48:rate=10:duration=0.1 {X264} NAME"),
                "a.mp4",
            ),
            "1 64x48",
        ),
        (
            "large",
            made(
                &format!("-f lavfi -i testsrc=size=1280x960:rate=10:duration=1 {X264} NAME"),
                "a.mp4",
            ),
            "8 640x480",
        ),
        ("sizes that change", resized(), " 64x48"),
    ];
    for (name, bytes, expect) in hostile {
        let told = told(name, &bytes);
        assert!(told.contains(expect), "{name}: {told}");
    }
}

/// A film whose second half is of another size.
fn resized() -> Vec<u8> {
    let part = |size: &str| {
        made(
            &format!("-f lavfi -i testsrc=size={size}:rate=10:duration=1 {X264} -bf 0 NAME"),
            "a.h264",
        )
    };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("both.h264");
    fs::write(&path, [part("64x48"), part("96x80")].concat()).unwrap();
    made(
        &format!(
            "-f h264 -framerate 10 -i {} -c copy -bsf:v setts=ts=N*120000 NAME",
            path.display()
        ),
        "a.mkv",
    )
}

#[test]
fn damaged_films_end() {
    if !*HAS_FFMPEG {
        return;
    }
    let film =
        made(&format!("-f lavfi -i testsrc=size=64x48:rate=10:duration=2 {X264} NAME"), "a.mkv");
    let mut random = Random::new(7);
    for round in 0..20 {
        let mut damaged = film.clone();
        for _ in 0..=round {
            let at = random.below(damaged.len());
            damaged[at] = random.next_u64() as u8;
        }
        told("damaged", &damaged);
    }
}

#[test]
fn there_may_be_no_program() {
    let film = boxed_nothing();
    let read = |command: Vec<OsString>| {
        Films::new(command).read((Kind::Mp4, &film), PIXELS, eight, &|| true).unwrap_err()
    };
    assert!(matches!(read(vec!["/nowhere/ffmpeg".into()]), FilmError::Absent));
    let ends =
        |code: i32| vec!["sh".into(), "-c".into(), format!("echo why >&2; exit {code}").into()];
    assert!(matches!(read(ends(ABSENT)), FilmError::Absent));
    assert!(matches!(read(ends(UNFIT)), FilmError::Unfit(why) if why == "why"));
    assert!(matches!(read(ends(1)), FilmError::Empty(Some(why)) if why == "why"));
}

fn boxed_nothing() -> Vec<u8> {
    b"\0\0\0\x08ftyp".to_vec()
}
