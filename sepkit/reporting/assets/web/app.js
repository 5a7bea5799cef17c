// The page: take a recording, let the worker separate it, show and play what comes out.
import { decode, drawSpectrogram, drawWaveform, spectrogram, wav } from "./sound.js";

const RECORDED_SECONDS = 10;
const find = (id) => document.getElementById(id);
const [status, progress, results, file, drop] = ["status", "progress", "results", "file", "drop"].map(find);

let model, worker, ready;
let busy = false;
let addresses = [];

function say(text, isError = false) {
  status.textContent = text;
  status.classList.toggle("error", isError);
}

class Mistake extends Error {}

// Ask the worker, and report what it tells meanwhile.
function ask(message, meanwhile = () => {}) {
  return new Promise((resolve, reject) => {
    worker.onerror = (event) => reject(new Mistake(`The model cannot run here (${event.message}); use the command sepkit separate.`));
    worker.onmessage = ({ data }) => {
      if (data.kind === "loading") meanwhile(data.share);
      else if (data.kind === "failed") reject(new Mistake(`The model failed (${data.reason}).`));
      else resolve(data);
    };
    worker.postMessage(message);
  });
}

async function begin() {
  if (typeof WebAssembly !== "object" || typeof Worker !== "function") {
    throw new Mistake("This browser does not run WebAssembly, which the model needs; use a newer one, or the command sepkit separate.");
  }
  const response = await fetch("model.json");
  if (!response.ok) throw new Mistake(`model.json is missing (${response.status}); make the page again with sepkit web.`);
  model = await response.json();
  find("limit").textContent = `at most ${model.most_seconds} seconds`;
  find("about").textContent = `The model is ${model.name}: ${model.hypotheses} voices at ${model.sample_rate} Hz, ${(model.bytes / 1e6).toFixed(1)} MB, made with sepkit ${model.version}. It runs in ONNX Runtime Web.`;
  if (model.home) {
    find("home").firstElementChild.href = model.home;
    find("home").hidden = false;
  }
  worker = new Worker("worker.js", { type: "module" });
  progress.hidden = false;
  say(`The model is being loaded (${(model.bytes / 1e6).toFixed(1)} MB).`);
  await ask({ kind: "load", model }, (share) => { progress.value = share; });
  progress.hidden = true;
  say("The model is ready. From here on the page needs no network.");
}

async function separate(name, bytes) {
  if (busy) return;
  busy = true;
  drop.querySelectorAll("button").forEach((button) => { button.disabled = true; });
  try {
    await ready;
    results.replaceChildren();
    addresses.forEach((address) => URL.revokeObjectURL(address));
    addresses = [];
    say(`${name} is being read.`);
    let mixture;
    try {
      mixture = await decode(bytes, model.sample_rate);
    } catch {
      throw new Mistake(`${name}: this browser finds no sound in it; choose a wav, mp3, flac or m4a file.`);
    }
    check(name, mixture);
    progress.hidden = false;
    progress.removeAttribute("value");
    const seconds = mixture.length / model.sample_rate;
    say(`${name}, ${seconds.toFixed(1)} s, is being separated.`);
    const began = performance.now();
    const separated = await ask({ kind: "separate", mixture });
    const took = (performance.now() - began) / 1000;
    show(name, mixture, separated);
    say(`${name}: ${seconds.toFixed(1)} s of sound were separated in ${took.toFixed(1)} s.`);
  } catch (error) {
    say(error instanceof Mistake ? error.message : `Something went wrong: ${error.message ?? error}`, true);
  } finally {
    busy = false;
    progress.hidden = true;
    drop.querySelectorAll("button").forEach((button) => { button.disabled = false; });
  }
}

function check(name, mixture) {
  const seconds = mixture.length / model.sample_rate;
  if (seconds > model.most_seconds) {
    throw new Mistake(`${name}: found ${seconds.toFixed(0)} s, expected at most ${model.most_seconds}; cut it, or use the command sepkit separate, which takes hours.`);
  }
  if (mixture.every((sample) => sample === mixture[0])) throw new Mistake(`${name}: the recording is silent; choose one in which people speak.`);
}

// The result in words, as `sepkit separate` prints it.
function summary({ estimates, speakers, orMore, scored, predicted, interval, unlike }) {
  const counted = (number, what) => `${number} ${what}${number === 1 ? "" : "s"}`, count = estimates.length;
  let text = counted(speakers ?? count, speakers === null && !scored ? "output" : "speaker");
  if (orMore) text += " or more";
  if (speakers === 1 && count > 1) text += ", in voice 1";
  if (unlike) return `${text}; quality unknown: unlike the recordings that the prediction was fitted on.`;
  const known = (predicted ?? []).map((_, i) => i).filter((i) => Number.isFinite(predicted[i]));
  if (known.length) {
    const mean = (of) => known.reduce((sum, i) => sum + of(i), 0) / known.length;
    const [low, high] = [0, 1].map((end) => mean((i) => interval[i][end]));
    text += `; predicted SI-SDR ${expected(mean((i) => predicted[i]), [low, high], "90 % interval ")}`;
    if (speakers === null && !scored) text += ` if there are ${counted(count, "speaker")}`;
    text += `: ${low < model.usable_db ? "probably failed" : low >= model.good_db ? "good" : "usable, with audible leakage"}`;
  }
  return `${text}.`;
}

// A predicted SI-SDR and the interval that holds 90 % of such separations; adding 0 turns -0 into 0.
const expected = (value, ends, name = "") => `${(Number(value.toFixed(1)) + 0).toFixed(1)} dB (${name}${ends.map((end) => Math.round(end) + 0).join(" to ")})`;

function show(name, mixture, separated) {
  const { estimates, predicted, interval, unlike } = separated;
  const stem = name.replace(/\.[^.]*$/, "");
  const told = document.createElement("p");
  told.id = "summary";
  told.textContent = summary(separated);
  results.append(told);
  const sounds = [["Mixture", mixture, null], ...estimates.map((estimate, i) => [`Voice ${i + 1}`, estimate, `${stem}_s${i + 1}.wav`])];
  const peak = Math.max(1e-6, ...sounds.map(([, samples]) => samples.reduce((most, sample) => Math.max(most, Math.abs(sample)), 0)));
  const pictures = sounds.map(([, samples]) => spectrogram(samples));
  const loudest = pictures[0].reduce((most, frame) => frame.reduce((a, b) => Math.max(a, b), most), -Infinity);
  sounds.forEach(([title, samples, download], i) => {
    const section = document.createElement("section");
    section.className = "voice";
    const heading = document.createElement("h2");
    heading.textContent = title;
    const waveform = picture(`Waveform: ${title}`), colors = picture(`Spectrogram: ${title}`);
    const player = document.createElement("audio");
    player.controls = true;
    player.setAttribute("aria-label", title);
    player.src = URL.createObjectURL(wav(samples, model.sample_rate));
    addresses.push(player.src);
    section.append(heading, waveform, colors, player);
    if (download && !unlike && Number.isFinite(predicted?.[i - 1])) {
      const data = document.createElement("data");
      data.value = predicted[i - 1];
      data.textContent = expected(predicted[i - 1], interval[i - 1]);
      heading.append(", predicted ", data);
    }
    if (download) {
      const link = document.createElement("a");
      link.href = player.src;
      link.download = download;
      link.textContent = `Download ${download}`;
      section.append(link);
    }
    results.append(section);
    drawWaveform(waveform, samples, peak);
    drawSpectrogram(colors, pictures[i], loudest);
  });
}

function picture(label) {
  const canvas = document.createElement("canvas");
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", label);
  return canvas;
}

async function record() {
  if (!navigator.mediaDevices?.getUserMedia) {
    say("This browser gives no microphone to this page; open it from https or localhost, or choose a file.", true);
    return;
  }
  let stream;
  try {
    stream = await navigator.mediaDevices.getUserMedia({ audio: { echoCancellation: false, noiseSuppression: false } });
  } catch (error) {
    say(`The microphone cannot be used (${error.name}); allow it for this page, or choose a file.`, true);
    return;
  }
  const recorder = new MediaRecorder(stream), parts = [];
  const button = find("record");
  recorder.ondataavailable = ({ data }) => parts.push(data);
  const stopped = new Promise((resolve) => { recorder.onstop = resolve; });
  recorder.start();
  button.textContent = "Stop";
  button.onclick = () => recorder.stop();
  const clock = setTimeout(() => recorder.state === "recording" && recorder.stop(), 1000 * RECORDED_SECONDS);
  say(`Recording, ${RECORDED_SECONDS} seconds at most.`);
  await stopped;
  clearTimeout(clock);
  stream.getTracks().forEach((track) => track.stop());
  button.textContent = `Record ${RECORDED_SECONDS} seconds`;
  button.onclick = record;
  await separate("recording", await new Blob(parts).arrayBuffer());
}

async function take(chosen) {
  if (chosen) await separate(chosen.name, await chosen.arrayBuffer());
}

find("choose").onclick = () => file.click();
find("record").onclick = record;
file.onchange = async () => { await take(file.files[0]); file.value = ""; };
for (const kind of ["dragenter", "dragover"]) {
  document.addEventListener(kind, (event) => { event.preventDefault(); drop.classList.add("over"); });
}
document.addEventListener("dragleave", () => drop.classList.remove("over"));
document.addEventListener("drop", (event) => {
  event.preventDefault();
  drop.classList.remove("over");
  take(event.dataTransfer.files[0]);
});

ready = begin();
ready.catch((error) => {
  progress.hidden = true;
  say(error instanceof Mistake ? error.message : `The page could not be loaded (${error.message ?? error}); reload it.`, true);
});
