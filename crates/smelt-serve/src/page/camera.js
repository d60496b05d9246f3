// Takes a picture with the camera: in a dialog where browsers lend it to pages, by the system's own camera
// elsewhere, as over plain HTTP from another machine.

import { frame } from "./pictures.js";

/** Opens the camera; `take` gets the file, `complain` why there is none. */
export async function open(take, complain) {
  if (!navigator.mediaDevices?.getUserMedia) return document.getElementById("capture").click();
  try {
    const stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment", width: { ideal: 1920 } } });
    await show(stream, take);
  } catch (error) {
    complain(`There is no picture from the camera: ${error.message}.`);
  }
}

async function show(stream, take) {
  const [dialog, finder, shoot] = ["camera", "finder", "shoot"].map(id => document.getElementById(id));
  shoot.disabled = true;
  finder.onloadeddata = () => { shoot.disabled = false; };
  finder.srcObject = stream;
  dialog.returnValue = "";
  dialog.showModal();
  await new Promise(done => dialog.addEventListener("close", done, { once: true }));
  if (dialog.returnValue === "shoot") take(await frame(finder));
  stream.getTracks().forEach(track => track.stop());
  finder.srcObject = null;
}
