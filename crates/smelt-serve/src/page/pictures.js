// Reads pictures that somebody picked, dropped, pasted or took.

/** Servers decode these; whatever else this browser can show becomes PNG here. */
const KNOWN = ["image/png", "image/jpeg"];

/** A file as {url, name, width, height}; the error says in one line why it is none. */
export async function read(file) {
  const name = file.name || "The picture";
  const why = `${name} is no picture that this browser can read; take PNG, JPEG, WebP or GIF.`;
  // Of some files, such as HEIC, browsers do not know the type; whether they can show it decides.
  if (file.type !== "" && !file.type.startsWith("image/")) throw new Error(why);
  const bitmap = await createImageBitmap(file).catch(() => { throw new Error(why); });
  const url = KNOWN.includes(file.type) ? await asUri(file) : asPng(bitmap);
  return { url, name, width: bitmap.width, height: bitmap.height };
}

function asUri(blob) {
  return new Promise((done, failed) => {
    const reader = new FileReader();
    reader.onload = () => done(reader.result);
    reader.onerror = () => failed(reader.error);
    reader.readAsDataURL(blob);
  });
}

function asPng(source) { return drawn(source, source.width, source.height).toDataURL("image/png"); }

/** What a video shows now, as a file. */
export function frame(video) {
  const canvas = drawn(video, video.videoWidth, video.videoHeight);
  return new Promise(done => {
    canvas.toBlob(blob => done(new File([blob], "camera.jpg", { type: "image/jpeg" })), "image/jpeg", 0.92);
  });
}

function drawn(source, width, height) {
  const canvas = Object.assign(document.createElement("canvas"), { width, height });
  canvas.getContext("2d").drawImage(source, 0, 0);
  return canvas;
}
