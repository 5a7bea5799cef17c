// Sounds as arrays of samples: decoding, levels, wav files, and pictures of them.

// Decode a file to one channel at `rate` Hz; several channels are averaged.
export async function decode(bytes, rate) {
  const found = rateOf(new DataView(bytes));
  let context;
  try {
    context = new OfflineAudioContext(1, 1, found);
  } catch {
    context = new OfflineAudioContext(1, 1, 48000); // not every browser takes every rate
  }
  // What a browser resamples, to the rate of the context, loses treble and folds back what lies above.
  const decoded = await context.decodeAudioData(bytes);
  const mono = new Float32Array(decoded.length);
  for (let channel = 0; channel < decoded.numberOfChannels; channel++) {
    const samples = decoded.getChannelData(channel);
    for (let t = 0; t < mono.length; t++) mono[t] += samples[t] / decoded.numberOfChannels;
  }
  // A constant would ring at both ends.
  const middle = mono.reduce((sum, sample) => sum + sample, 0) / mono.length;
  return resample(mono.map((sample) => sample - middle), decoded.sampleRate, rate);
}

// A deviation below this share of the mean is the rounding of 32 bits, not sound.
const ROUNDING = 1e-7;

// runners.level.standardize: samples of zero mean and a deviation, and the factor back.
export function standardize(samples, deviation) {
  const middle = samples.reduce((sum, sample) => sum + sample, 0) / samples.length;
  const own = Math.sqrt(samples.reduce((sum, sample) => sum + (sample - middle) ** 2, 0) / samples.length);
  const factor = own > ROUNDING * Math.abs(middle) ? own / deviation : 0;
  return { standardized: samples.map((sample) => (factor ? (sample - middle) / factor : 0)), factor };
}

// runners.level.RunningLevel: the same by the samples so far, whose weight decays to 1/e in 10 s; a factor for each sample.
export function standardizeRunning(samples, deviation, rate) {
  const decay = Math.exp(-1 / (10 * rate)), standardized = new Float32Array(samples.length), factors = new Float64Array(samples.length);
  let weight = 0, sum = 0, squares = 0;
  samples.forEach((sample, t) => {
    weight = decay * weight + 1;
    sum = decay * sum + sample;
    squares = decay * squares + sample ** 2;
    const middle = sum / weight, own = Math.sqrt(Math.max(squares / weight - middle ** 2, 0));
    factors[t] = own > ROUNDING * Math.abs(middle) ? own / deviation : 0;
    standardized[t] = factors[t] ? (sample - middle) / factors[t] : 0;
  });
  return { standardized, factors };
}

// The sample rate that the header of a wav, flac, ogg, mp4 or mp3 file tells; 48000 where none is found.
export function rateOf(view) {
  const text = (at, length) => String.fromCharCode(...Array.from({ length }, (_, i) => (at + i < view.byteLength ? view.getUint8(at + i) : 0)));
  try {
    if (text(8, 4) === "WAVE") {
      let at = 12;
      while (text(at, 4) !== "fmt ") at += 8 + view.getUint32(at + 4, true) + (view.getUint32(at + 4, true) & 1);
      return view.getUint32(at + 12, true);
    }
    if (text(0, 4) === "fLaC") return view.getUint32(18) >>> 12;
    if (text(0, 4) === "OggS" && text(29, 6) === "vorbis") return view.getUint32(40, true);
    if (text(4, 4) === "ftyp") {
      for (let at = 8; at + 46 <= view.byteLength; at++) {
        if (view.getUint32(at) === 0x73747364 && text(at + 16, 4) === "mp4a") return view.getUint16(at + 44); // stsd
      }
    }
    let at = 0;
    if (text(0, 3) === "ID3") at = 10 + [6, 7, 8, 9].reduce((size, i) => 128 * size + view.getUint8(i), 0);
    if (view.getUint16(at) >= 0xffe0) {
      const version = (view.getUint8(at + 1) >> 3) & 3; // 3: MPEG 1; 2: MPEG 2; 0: MPEG 2.5
      return [44100, 48000, 32000, 48000][(view.getUint8(at + 2) >> 2) & 3] / [4, 1, 2, 1][version];
    }
  } catch (error) {
    if (!(error instanceof RangeError)) throw error; // a header that is cut off
  }
  return 48000;
}

// The filter of `sepkit separate`, soxr's high quality, as its impulse responses show it: a sinc that ends at this share of
// the band which both rates hold, under Kaiser's window (Kaiser, 1974). Shape and half-length of that, over the band in
// cycles per sample, where one rate is twice the other, and else.
const CUTOFF = 0.956872, ONE_STAGE = [13.04, 48.625], STAGES = [13.71, 50.75];

// Resample, at every output's exact place between the inputs; in pieces, between which the page answers.
export async function resample(samples, from, to) {
  if (from === to) return samples;
  const band = 0.5 * Math.min(1, to / from), cutoff = CUTOFF * band;
  const [shape, length] = from === 2 * to || to === 2 * from ? ONE_STAGE : STAGES, width = length / band, half = Math.ceil(width);
  const divisor = ((a, b) => { while (b) [a, b] = [b, a % b]; return a; })(from, to);
  const [up, down] = [to / divisor, from / divisor];
  const kernels = new Map();
  // Weights of the inputs from `half - 1` before the one at an output, or just before it, to `half` after.
  const kernelAt = (phase) => {
    if (!kernels.has(phase)) {
      kernels.set(phase, Float64Array.from({ length: 2 * half }, (_, i) => {
        const t = i - half + 1 - phase / up;
        const sinc = t === 0 ? 2 * cutoff : Math.sin(2 * Math.PI * cutoff * t) / (Math.PI * t);
        return (sinc * bessel(shape * Math.sqrt(Math.max(0, 1 - (t / width) ** 2)))) / bessel(shape);
      }));
    }
    return kernels.get(phase);
  };
  const resampled = new Float32Array(Math.floor((samples.length * up) / down + 0.5));
  for (let m = 0; m < resampled.length; m++) {
    if (m % 32768 === 32767) await new Promise((resolve) => setTimeout(resolve));
    const weights = kernelAt((m * down) % up), first = Math.floor((m * down) / up) - half + 1;
    const stop = Math.min(2 * half, samples.length - first);
    let sum = 0;
    for (let i = Math.max(0, -first); i < stop; i++) sum += weights[i] * samples[first + i];
    resampled[m] = sum;
  }
  return resampled;
}

// The modified Bessel function of order zero, by its series.
function bessel(x) {
  let sum = 1, term = 1;
  for (let k = 1; term > 1e-17 * sum; k++) sum += term *= (x / (2 * k)) ** 2;
  return sum;
}

// A wav file of 32-bit floats.
export function wav(samples, rate) {
  const bytes = new ArrayBuffer(58 + 4 * samples.length);
  const view = new DataView(bytes);
  const text = (at, word) => [...word].forEach((c, i) => view.setUint8(at + i, c.charCodeAt(0)));
  text(0, "RIFF"); view.setUint32(4, 50 + 4 * samples.length, true); text(8, "WAVE");
  text(12, "fmt "); view.setUint32(16, 18, true); view.setUint16(20, 3, true); view.setUint16(22, 1, true);
  view.setUint32(24, rate, true); view.setUint32(28, 4 * rate, true); view.setUint16(32, 4, true);
  view.setUint16(34, 32, true);
  text(38, "fact"); view.setUint32(42, 4, true); view.setUint32(46, samples.length, true);
  text(50, "data"); view.setUint32(54, 4 * samples.length, true);
  for (let t = 0; t < samples.length; t++) view.setFloat32(58 + 4 * t, samples[t], true);
  return new Blob([bytes], { type: "audio/wav" });
}

// Draw the waveform: the least and the largest sample of each column; `peak` is the height of the picture.
export function drawWaveform(canvas, samples, peak) {
  const [width, height] = sized(canvas, 4);
  const context = canvas.getContext("2d");
  context.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--accent");
  for (let x = 0; x < width; x++) {
    let low = 0, high = 0;
    const stop = Math.floor(((x + 1) * samples.length) / width);
    for (let t = Math.floor((x * samples.length) / width); t < stop; t++) {
      low = Math.min(low, samples[t]);
      high = Math.max(high, samples[t]);
    }
    const top = (1 - high / peak) * (height / 2);
    context.fillRect(x, top, 1, Math.max(1, (1 - low / peak) * (height / 2) - top));
  }
}

// Draw the spectrogram, 60 dB below `loudest` (see `spectrogram`); low frequencies are at the bottom.
export function drawSpectrogram(canvas, frames, loudest) {
  const [width, height] = sized(canvas, 5);
  const context = canvas.getContext("2d");
  const image = context.createImageData(width, height);
  for (let x = 0; x < width; x++) {
    const frame = frames[Math.floor((x * frames.length) / width)];
    for (let y = 0; y < height; y++) {
      const bin = Math.floor(((height - 1 - y) * frame.length) / height);
      const share = Math.min(1, Math.max(0, 1 + (frame[bin] - loudest) / 60));
      // Black over purple and orange to light yellow.
      image.data.set([255 * Math.min(1, 1.7 * share), 235 * share ** 2.2, 255 * (0.55 * Math.sin(Math.PI * share) + 0.75 * share ** 6), 255], 4 * (y * width + x));
    }
  }
  context.putImageData(image, 0, 0);
}

const WINDOW = 256;

// Powers in dB of windows of 256 samples, every `hop` samples: an array of frames of 128 bins.
export function spectrogram(samples) {
  const hop = Math.max(128, Math.ceil(samples.length / 1000));
  const frames = [];
  for (let begin = 0; begin + WINDOW <= Math.max(WINDOW, samples.length); begin += hop) {
    const real = new Float64Array(WINDOW), imaginary = new Float64Array(WINDOW);
    for (let t = 0; t < WINDOW; t++) {
      real[t] = (samples[begin + t] ?? 0) * (0.5 - 0.5 * Math.cos((2 * Math.PI * (t + 0.5)) / WINDOW));
    }
    transform(real, imaginary);
    frames.push(Float64Array.from({ length: WINDOW / 2 }, (_, k) => 10 * Math.log10(real[k] ** 2 + imaginary[k] ** 2 + 1e-12)));
  }
  return frames;
}

// The discrete Fourier transform in place (Cooley and Tukey, 1965).
export function transform(real, imaginary) {
  const size = real.length;
  if (size & (size - 1)) return chirped(real, imaginary);
  const [cosines, sines] = waves(size);
  for (let i = 1, j = 0; i < size; i++) {
    let bit = size >> 1;
    for (; j & bit; bit >>= 1) j ^= bit;
    j ^= bit;
    if (i < j) {
      [real[i], real[j]] = [real[j], real[i]];
      [imaginary[i], imaginary[j]] = [imaginary[j], imaginary[i]];
    }
  }
  for (let length = 2; length <= size; length <<= 1) {
    for (let begin = 0; begin < size; begin += length) {
      for (let k = 0; k < length / 2; k++) {
        const c = cosines[(k * size) / length], s = -sines[(k * size) / length];
        const a = begin + k, b = a + length / 2;
        const r = c * real[b] - s * imaginary[b], i = s * real[b] + c * imaginary[b];
        real[b] = real[a] - r; imaginary[b] = imaginary[a] - i;
        real[a] += r; imaginary[a] += i;
      }
    }
  }
}

// The same of any length, as a convolution with a chirp (Bluestein, 1970).
function chirped(real, imaginary) {
  const size = real.length, long = 2 ** Math.ceil(Math.log2(2 * size - 1));
  const [a, b, c, d] = Array.from({ length: 4 }, () => new Float64Array(long));
  for (let k = 0; k < size; k++) {
    const angle = (Math.PI * ((k * k) % (2 * size))) / size;
    c[k] = c[(long - k) % long] = Math.cos(angle);
    d[k] = d[(long - k) % long] = Math.sin(angle);
    a[k] = real[k] * c[k] + imaginary[k] * d[k];
    b[k] = imaginary[k] * c[k] - real[k] * d[k];
  }
  const [cosines, sines] = [c.slice(0, size), d.slice(0, size)];
  transform(a, b);
  transform(c, d);
  // The transform of the conjugate is that back, up to a factor.
  for (let k = 0; k < long; k++) [a[k], b[k]] = [a[k] * c[k] - b[k] * d[k], -a[k] * d[k] - b[k] * c[k]];
  transform(a, b);
  for (let k = 0; k < size; k++) {
    real[k] = (a[k] * cosines[k] - b[k] * sines[k]) / long;
    imaginary[k] = (-b[k] * cosines[k] - a[k] * sines[k]) / long;
  }
}

const known = new Map();

// Cosines and sines of a period of `size` samples.
function waves(size) {
  if (!known.has(size)) known.set(size, [Math.cos, Math.sin].map((of) => Float64Array.from({ length: size }, (_, t) => of((2 * Math.PI * t) / size))));
  return known.get(size);
}

// Give a canvas as many pixels as it shows; its width is `ratio` times its height.
function sized(canvas, ratio) {
  const scale = window.devicePixelRatio || 1;
  const shown = canvas.clientWidth || 600;
  canvas.width = Math.round(shown * scale);
  canvas.height = Math.round((shown * scale) / ratio);
  return [canvas.width, canvas.height];
}
