// What `sepkit separate` tells beside its estimates: their mean over views, orders, features, SI-SDR to expect, who speaks, levels.
// Each function computes what the one named above it does in sepkit.inference.
import { resample, transform } from "./sound.js";

const FRAME_SECONDS = 0.032, SHORTEST_SECONDS = 0.5, LONGEST_SECONDS = 30, EXCERPT_SECONDS = 5;
const LEAST_DB = -60, LOWEST_LEVEL_DB = -80, FARTHEST = 4, EMPTY_DB = -30, MOST_RANGE_DB = 20, TINY = 2 ** -1022;

const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
const range = (values) => Math.max(...values) - Math.min(...values);
const centered = (values) => { const middle = mean(values); return Float64Array.from(values, (value) => value - middle); };
const isConstant = (values) => values.every((value) => value === values[0]);
// Half to even, as Python rounds.
const round = (x) => (x % 1 === 0.5 || x % 1 === -0.5 ? 2 * Math.round(x / 2) : Math.round(x));
const decibels = (power) => 10 * Math.log10(power);

function dot(a, b) {
  let sum = 0;
  for (let t = 0; t < a.length; t++) sum += a[t] * b[t];
  return sum;
}

// runners.base.ratio_db
const ratioDb = (part, whole) => Math.min(60, Math.max(LEAST_DB, decibels(Math.max(part, 0) / whole)));

// runners.base.pairwise_si_sdr_db
function pairwiseSiSdrDb(estimates, sources) {
  const [a, b] = [estimates.map(centered), sources.map(centered)];
  return a.map((one) => b.map((other) => {
    const energies = dot(one, one) * dot(other, other), squared = energies > 0 ? dot(one, other) ** 2 / energies : 0;
    return ratioDb(squared, 1 - squared);
  }));
}

// matching.linear_sum_assignment of a square table, the greatest sum: the column of each row.
export function assignment(table) {
  const size = table.length, zeros = () => new Array(size + 1).fill(0);
  const ofRows = zeros(), ofColumns = zeros(), rowOf = zeros();
  for (let row = 1; row <= size; row++) {
    const least = zeros().fill(Infinity), used = zeros(), before = zeros();
    let column = 0;
    rowOf[0] = row;
    do {
      used[column] = 1;
      const current = rowOf[column];
      let next = 0, step = Infinity;
      for (let j = 1; j <= size; j++) {
        if (used[j]) continue;
        const cost = -table[current - 1][j - 1] - ofRows[current] - ofColumns[j];
        if (cost < least[j]) [least[j], before[j]] = [cost, column];
        if (least[j] < step) [step, next] = [least[j], j];
      }
      for (let j = 0; j <= size; j++) {
        if (used[j]) { ofRows[rowOf[j]] += step; ofColumns[j] -= step; } else least[j] -= step;
      }
      column = next;
    } while (rowOf[column]);
    for (; column; column = before[column]) rowOf[column] = rowOf[before[column]];
  }
  const columns = new Array(size);
  rowOf.slice(1).forEach((row, j) => { columns[row - 1] = j; });
  return columns;
}

// numpy.linalg.lstsq of a symmetric matrix: by its eigenvalues, those below `least` of the largest count as zero (Jacobi).
export function leastSquares(matrix, right, least) {
  const size = right.length, a = matrix.map((row) => [...row]);
  const vectors = a.map((_, i) => a.map((_, j) => Number(i === j)));
  for (let sweep = 0; sweep < 50; sweep++) {
    for (let p = 0; p < size; p++) {
      for (let q = p + 1; q < size; q++) {
        if (Math.abs(a[p][q]) < 1e-300) continue;
        const angle = 0.5 * Math.atan2(2 * a[p][q], a[q][q] - a[p][p]), c = Math.cos(angle), s = Math.sin(angle);
        for (const rows of [a, vectors]) for (const row of rows) [row[p], row[q]] = [c * row[p] - s * row[q], s * row[p] + c * row[q]];
        for (let k = 0; k < size; k++) [a[p][k], a[q][k]] = [c * a[p][k] - s * a[q][k], s * a[p][k] + c * a[q][k]];
      }
    }
  }
  const values = a.map((row, i) => row[i]), largest = Math.max(...values.map(Math.abs)), solution = new Array(size).fill(0);
  values.forEach((value, k) => {
    if (!(Math.abs(value) > least * largest)) return;
    const along = right.reduce((sum, entry, i) => sum + entry * vectors[i][k], 0) / value;
    for (let i = 0; i < size; i++) solution[i] += along * vectors[i][k];
  });
  return solution;
}

// ---------------------------------------------------------------------------------------------------------------- views

// runners.views.ViewsRunner.run; `run` gives { estimates, scores, features } of samples.
export async function runInViews(run, mixture, speeds, rate) {
  const first = await run(mixture);
  const total = first.estimates.map((estimate) => Float64Array.from(estimate)), agreement = total.map(() => 0);
  for (const speed of speeds) {
    const changed = round(speed * rate);
    const { estimates } = await run(await resample(mixture, changed, rate)), views = [];
    for (const estimate of estimates) {
      const back = await resample(estimate, rate, changed), fitted = new Float32Array(mixture.length);
      fitted.set(back.subarray(0, mixture.length));
      views.push(fitted);
    }
    const table = pairwiseSiSdrDb(first.estimates, views);
    assignment(table).forEach((column, i) => {
      const view = views[column], energy = dot(view, view), gain = energy > 0 ? dot(view, first.estimates[i]) / energy : 0;
      agreement[i] += table[i][column] / speeds.length;
      for (let t = 0; t < view.length; t++) total[i][t] += gain * view[t];
    });
  }
  const estimates = total.map((sum) => Float32Array.from(sum, (value) => value / (1 + speeds.length)));
  return { ...first, estimates, features: { ...first.features, ...(speeds.length ? { agreement_db: agreement } : {}) } };
}

// ---------------------------------------------------------------------------------------------------------------- swaps

const SWAP_HOP_SECONDS = 0.5, MOST_ESTIMATES = 4, SWAP_PAUSE_DB = 20, LEAST_SHARE = 0.05, ALONE_SHARE = 0.7;
const SWAP_COST = 1 / 16, LEAST_GAIN = 0.002, MOST_ALIKE = 0.37, SWAP_RANGE_DB = 15, MOST_ROUNDS = 10, STARTS = 10, REACH_SECONDS = 0.25;

const sumOf = (rows) => rows[0].map((_, d) => rows.reduce((sum, row) => sum + row[d], 0));
const places = (count) => Array.from({ length: count }, (_, i) => i);
// The first place of the greatest value, up to `least`.
const argmax = (values, least = 0) => values.reduce((best, value, i) => (value > values[best] + least ? i : best), 0);
const permutations = (all) => (all.length ? all.flatMap((one) => permutations(all.filter((other) => other !== one)).map((rest) => [one, ...rest])) : [[]]);

// evidence.measure_whole, of swaps: estimates at their levels in the mixture in other orders, or as they are.
export async function withoutSwaps(embed, mixture, estimates, rate) {
  const leveled = estimates.map((one) => {
    const energy = dot(one, one), gain = Math.fround(energy > 0 ? dot(one, mixture) / energy : 0);
    return one.map((sample) => gain * sample);
  });
  const orders = await findOrders(embed, leveled, rate);
  return orders ? arrange(orders, leveled) : estimates;
}

// diarization.swaps.find_orders: { edges, orders, fade }, or null where estimates are best as they are.
export async function findOrders(embed, estimates, rate) {
  const n = estimates.length, length = estimates[0].length, hop = round(SWAP_HOP_SECONDS * rate), count = Math.ceil(length / hop);
  const energies = estimates.map((one) => places(count).map((k) => { const part = one.subarray(k * hop, (k + 1) * hop); return dot(part, part); }));
  const totals = energies.map((own) => own.reduce((a, b) => a + b));
  if (n < 2 || n > MOST_ESTIMATES || Math.min(...totals) <= 10 ** (-SWAP_RANGE_DB / 10) * Math.max(...totals)) return null;
  const shares = sharesOf(energies), found = [];
  for (let i = 0; i < n; i++) found.push(await swapVoices(embed, estimates[i], shares[i], rate, hop));
  const size = found.flat().find(Boolean).length, voices = found.map((own) => own.map((voice) => voice ?? new Float64Array(size)));
  const weighted = voices.map((own, i) => own.map((voice, k) => voice.map((value) => shares[i][k] * value)));
  const windows = shares.flatMap((own, i) => places(count).filter((k) => own[k] > ALONE_SHARE).map((k) => [i, k]));
  if (windows.length < n) return null;
  const alone = windows.map(([i, k]) => voices[i][k]), orders = permutations(places(n)), own = weighted.map(sumOf);
  const ends = [own.map(unit), centersOf(alone, n)].map((centers) => follow(weighted, orders, centers));
  const { value, states } = ends[argmax(ends.map((end) => end.value), 1e-6)];
  const means = places(n).map((j) => alone.filter((_, w) => orders[states[windows[w][1]]][j] === windows[w][0]))
    .filter((voice) => voice.length).map((voice) => sumOf(voice).map((sum) => sum / voice.length));
  const alike = means.length < 2 ? 1 : Math.max(...means.flatMap((one, j) => means.slice(0, j).map((other) => dot(one, other))));
  const gain = value - own.reduce((sum, total) => sum + Math.sqrt(dot(total, total)), 0);
  if (gain < LEAST_GAIN * count || alike > MOST_ALIKE) return null;
  const changes = places(count).filter((k) => k && states[k] !== states[k - 1]), fade = round(PAUSE_FRAME_SECONDS * rate);
  const usual = orders[argmax(orders.map((_, s) => states.filter((state) => state === s).length))];
  const edges = changes.map((k) => quietest(estimates, k * hop, round(REACH_SECONDS * rate), fade));
  return { edges, orders: [0, ...changes].map((k) => places(n).map((i) => orders[states[k]][usual.indexOf(i)])), fade };
}

// diarization.swaps.Orders.arrange
export function arrange({ edges, orders, fade }, estimates) {
  const after = (e, t) => (e < 0 ? 1 : e < edges.length ? Math.fround(Math.min(1, Math.max(0, (t - edges[e]) / fade + 0.5))) : 0);
  return estimates.map((one, j) => one.map((_, t) => orders.reduce((sum, order, e) => {
    const weight = after(e - 1, t) - after(e, t);
    return weight ? sum + weight * estimates[order[j]][t] : sum;
  }, 0)));
}

// diarization.swaps._shares
function sharesOf(energies) {
  const windows = energies.map((own) => own.map((energy, k) => (own[k - 1] ?? 0) + energy + (own[k + 1] ?? 0)));
  const total = sumOf(windows), least = 10 ** (-SWAP_PAUSE_DB / 10) * quantile(total, LOUD_SHARE);
  return windows.map((own) => own.map((energy, k) => (total[k] > least && energy / total[k] >= LEAST_SHARE ? energy / total[k] : 0)));
}

// diarization.swaps._voices of one estimate: undefined for windows without a share.
async function swapVoices(embed, estimate, shares, rate, hop) {
  const heard = places(shares.length).filter((k) => shares[k]), waveforms = [], voices = new Array(shares.length).fill(undefined);
  for (const k of heard) {
    const window = new Float32Array(3 * hop), start = Math.max(0, (k - 1) * hop);
    window.set(estimate.subarray(start, (k + 2) * hop), start - (k - 1) * hop);
    waveforms.push(await resample(window, rate, embed.rate));
  }
  (heard.length ? await embed(waveforms) : []).forEach((voice, w) => { voices[heard[w]] = unit(voice); });
  return voices;
}

// diarization.swaps._centers
function centersOf(voices, n) {
  const nearest = (centers) => voices.map((voice) => centers.map((center) => dot(voice, center)));
  const ends = places(STARTS).map((start) => {
    let centers = [voices[Math.floor((start * voices.length) / STARTS)]];
    while (centers.length < n) centers.push(voices[argmax(nearest(centers).map((cosines) => -Math.max(...cosines)))]);
    for (let k = 0; k < MOST_ROUNDS; k++) {
      const labels = nearest(centers).map((cosines) => argmax(cosines));
      centers = centers.map((center, j) => { const own = voices.filter((_, w) => labels[w] === j); return own.length ? direction(own) : center; });
    }
    return centers;
  });
  return ends[argmax(ends.map((centers) => nearest(centers).reduce((sum, cosines) => sum + Math.max(...cosines), 0)), 1e-6)];
}

// diarization.swaps._follow
function follow(weighted, orders, centers) {
  const ends = [];
  while (ends.length < MOST_ROUNDS && (ends.length < 2 || ends.at(-1).value > ends.at(-2).value)) {
    const cosines = weighted[0].map((_, k) => weighted.map((own) => centers.map((center) => dot(own[k], center))));
    const end = likeliest(cosines.map((table) => orders.map((order) => order.reduce((sum, i, j) => sum + table[i][j], 0))));
    centers = centers.map((_, j) => direction(end.states.map((state, k) => weighted[orders[state][j]][k])));
    ends.push(end);
  }
  return ends[argmax(ends.map((end) => end.value))];
}

// diarization.swaps._likeliest
function likeliest(values) {
  let total = values[0];
  const cameFrom = values.slice(1).map((value) => {
    const ways = total.map((_, state) => total.map((before, other) => before - (other === state ? 0 : SWAP_COST))), from = ways.map((way) => argmax(way));
    total = value.map((own, state) => ways[state][from[state]] + own);
    return from;
  });
  const states = [argmax(total)];
  for (const from of cameFrom.reverse()) states.push(from[states.at(-1)]);
  return { value: Math.max(...total), states: states.reverse() };
}

// diarization.swaps._quietest
function quietest(estimates, sample, reach, frame) {
  const start = Math.max(0, sample - reach), parts = estimates.map((one) => one.subarray(start, sample + reach)), half = Math.floor(frame / 2);
  const power = sumOf(parts.map((part) => Float64Array.from(part, (value) => value * value)));
  return start + argmax(power.map((_, t) => -power.subarray(Math.max(0, t - half), t + frame - half).reduce((a, b) => a + b)));
}

// ------------------------------------------------------------------------------------------------------------- features

// quality.features.recording_features; `runWhole` is `runInViews` of an excerpt.
export async function recordingFeatures(runWhole, mixture, output, rate) {
  if (mixture.length < SHORTEST_SECONDS * rate || isConstant(mixture)) return null;
  if (mixture.length <= LONGEST_SECONDS * rate) return hypothesisFeatures(mixture, output, rate);
  const length = Math.min(mixture.length, round(EXCERPT_SECONDS * rate)), count = LONGEST_SECONDS / EXCERPT_SECONDS, parts = [];
  for (let k = 0; k < count; k++) {
    const start = round((k * (mixture.length - length)) / (count - 1)), excerpt = mixture.slice(start, start + length);
    if (isConstant(excerpt)) continue;
    const own = await runWhole(excerpt), features = hypothesisFeatures(excerpt, own, rate);
    const order = assignment(pairwiseSiSdrDb(output.estimates.map((one) => one.subarray(start, start + length)), own.estimates));
    parts.push(Object.fromEntries(Object.entries(features).map(([name, values]) => [name, order.map((column) => values[column])])));
  }
  if (!parts.length) return null;
  const means = Object.keys(parts[0]).map((name) => [name, output.estimates.map((_, i) => mean(parts.map((part) => part[name][i]).filter(Number.isFinite)))]);
  return { ...Object.fromEntries(means), log_duration_seconds: output.estimates.map(() => Math.log(LONGEST_SECONDS)) };
}

// quality.features.hypothesis_features
export function hypothesisFeatures(mixture, { estimates, scores, features }, rate) {
  const found = { ...relations(estimates, mixture), ...features, ...sound(estimates, rate), ...(scores ? { score: [...scores] } : {}) };
  const pairs = pairsOf(["agreement_db", "correlation_db"].filter((name) => name in found));
  for (const [one, other] of pairs) found[`${one}*${other}`] = estimates.map((_, i) => found[one][i] * found[other][i]);
  const silent = estimates.map(isConstant);
  for (const name of Object.keys(found)) found[name] = found[name].map((value, i) => (silent[i] ? NaN : value));
  for (const [name, value] of Object.entries(mixtureFeatures(mixture, rate))) found[name] = estimates.map(() => value);
  return found;
}

const pairsOf = (names) => names.flatMap((one, i) => names.slice(i).map((other) => [one, other]));

// quality.features.mixture_features
function mixtureFeatures(mixture, rate) {
  const wave = centered(mixture), squares = wave.map((value) => value * value), power = mean(squares);
  const frame = frameOf(wave, rate), spectrum = welch(framePowers(wave, frame), frame);
  const signs = wave.map((value) => Number(value < 0 || Object.is(value, -0)));
  let crossings = 0;
  for (let t = 1; t < signs.length; t++) crossings += signs[t] !== signs[t - 1];
  return {
    crest_factor_db: decibels(squares.reduce((a, b) => Math.max(a, b)) / power),
    spectral_flatness_db: mean(spectrum.map(decibels)) - decibels(mean(spectrum)),
    spectral_centroid_hz: dot(spectrum.map((_, k) => ((k + 1) * rate) / 2 / spectrum.length), spectrum) / (mean(spectrum) * spectrum.length),
    zero_crossing_rate: crossings / (wave.length - 1),
    log_kurtosis: Math.log(dot(squares, squares) / squares.length / power ** 2),
    level_deviation_db: levelDeviationDb(wave, frame),
    log_duration_seconds: Math.log(mixture.length / rate),
  };
}

const frameOf = (waveform, rate) => Math.min(waveform.length, round(FRAME_SECONDS * rate));

// quality.features._level_deviation_db
function levelDeviationDb(waveform, frame) {
  const energies = Float64Array.from({ length: Math.floor(waveform.length / frame) }, (_, i) => {
    const part = waveform.subarray(i * frame, (i + 1) * frame);
    return dot(part, part) / frame;
  });
  const levels = centered(floored(energies, LEAST_DB).map(decibels));
  return Math.sqrt(dot(levels, levels) / levels.length);
}

// quality.features._frame_powers: frames one after the other, each of `frame` / 2 + 1 bins.
function framePowers(waveform, frame) {
  const hop = frame - Math.floor(frame / 2), bins = Math.floor(frame / 2) + 1, count = Math.floor((waveform.length - frame) / hop) + 1;
  const hann = Float64Array.from({ length: frame }, (_, t) => 0.5 - 0.5 * Math.cos((2 * Math.PI * t) / frame));
  const powers = new Float64Array(count * bins);
  for (let i = 0; i < count; i++) {
    const real = centered(waveform.subarray(i * hop, i * hop + frame)).map((value, t) => value * hann[t]);
    const imaginary = new Float64Array(frame);
    transform(real, imaginary);
    for (let k = 0; k < bins; k++) powers[i * bins + k] = real[k] ** 2 + imaginary[k] ** 2;
  }
  return powers;
}

// quality.features._welch
function welch(powers, frame) {
  const bins = Math.floor(frame / 2) + 1, spectrum = new Float64Array(bins);
  for (let i = 0; i < powers.length; i++) spectrum[i % bins] += powers[i] / (powers.length / bins);
  for (let k = 1; k < Math.floor((frame + 1) / 2); k++) spectrum[k] *= 2;
  return floored(spectrum.subarray(1), -120);
}

// quality.features._floored
function floored(powers, leastDb) {
  const least = Math.max(powers.reduce((a, b) => Math.max(a, b)) * 10 ** (leastDb / 10), TINY);
  return powers.map((power) => Math.max(power, least));
}

// quality.features._relations
function relations(estimates, mixture) {
  const gram = estimates.map((a) => estimates.map((b) => dot(a, b))), cross = estimates.map((a) => dot(a, mixture));
  const total = dot(mixture, mixture), energies = gram.map((row, i) => Math.max(row[i], TINY)), norms = energies.map(Math.sqrt);
  const unit = gram.map((row, i) => row.map((value, j) => value / (norms[i] * norms[j]))), along = cross.map((value, i) => value / norms[i]);
  const residual = ratioDb(total - dot(leastSquares(unit, along, 1e-9), along), total);
  const found = {
    residual_db: estimates.map(() => residual),
    relative_level_db: cross.map((value, i) => ratioDb(value ** 2 / energies[i], total)),
  };
  if (estimates.length > 1) {
    found.correlation_db = correlationDb(gram);
  }
  return found;
}

// SI-SDR of each estimate to the one that it is most like.
function correlationDb(gram) {
  const norms = gram.map((row, i) => Math.sqrt(Math.max(row[i], TINY)));
  return gram.map((row, i) => {
    const nearest = Math.max(...row.map((value, j) => (j === i ? 0 : (value / (norms[i] * norms[j])) ** 2)));
    return ratioDb(nearest, 1 - nearest);
  });
}

// quality.features._sound
function sound(estimates, rate) {
  const waves = estimates.map(centered), frame = frameOf(waves[0], rate);
  const found = { estimate_level_deviation_db: waves.map((wave) => levelDeviationDb(wave, frame)) };
  if (waves.length > 1) {
    const powers = waves.map((wave) => framePowers(wave, frame));
    let total = 0, strongest = 0;
    for (let i = 0; i < powers[0].length; i++) {
      const here = powers.map((one) => one[i]);
      total += here.reduce((a, b) => a + b);
      strongest += Math.max(...here);
    }
    found.dominance = waves.map(() => (total > 0 ? strongest / total : 1));
  }
  return found;
}

// ------------------------------------------------------------------------------------------------------------ decisions

// quality.regression: what a ridge or logistic regression gives for features, by name; NaN where one is not known.
function evaluate({ features, means, scales, coefficients, intercept }, row) {
  return features.reduce((sum, name, i) => {
    const standardized = ((row[name] ?? NaN) - means[i]) / scales[i];
    return sum + coefficients[i] * Math.min(FARTHEST, Math.max(-FARTHEST, standardized));
  }, intercept);
}

// quality.single_speaker.SingleSpeakerDetector.in_domain
const flags = (model, row) => (model.features.every((name) => Number.isFinite(row[name])) ? evaluate(model, row) > model.threshold : null);

// decision.decide, for outputs that are all kept: what they are at their levels, and what is told of them.
// `embed` gives unit vectors of windows of speech, at `embed.rate`.
export async function decide(quality, mixture, { estimates, scores }, features, rate, embed) {
  const gram = estimates.map((a) => estimates.map((b) => dot(a, b))), energies = gram.map((row, i) => row[i]);
  const cross = estimates.map((a) => dot(a, mixture)), loudest = energies.indexOf(Math.max(...energies));
  const gains = cross.map((value, i) => (energies[i] > 0 ? value / energies[i] : 0));
  let isSpeaker = null, outputs = estimates;
  if (!scores && quality?.single_speaker) {
    const [single, alike] = await isSingleSpeaker(quality.single_speaker, features, gram, cross, estimates, rate, embed);
    if (single) isSpeaker = energies.map((_, i) => i === loudest);
    else if (single === false) isSpeaker = energies.map(() => true);
    if (isSpeaker) isSpeaker.forEach((speaks, i) => { if (!speaks) gains[i] = gains[loudest]; });
    if (single && alike) {
      outputs = [...estimates];
      outputs[loudest] = mixed(estimates, energies.map(() => 1));
    }
  }
  const speaks = isSpeaker ?? energies.map(() => true), several = speaks.filter(Boolean).length > 1;
  const told = { predicted: null, interval: null, unlike: false };
  if (quality) {
    const rows = features && estimates.map((_, i) => Object.fromEntries(Object.entries(features).map(([name, values]) => [name, values[i]])));
    const all = rows ? rows.map((row) => evaluate(quality.model, row)) : energies.map(() => NaN);
    told.predicted = all.map((value, i) => (scores || (speaks[i] && several) ? value : NaN));
    // quality.regression.RidgeRegression.interval
    const spread = quality.model.spread && { ...quality.model, coefficients: quality.model.spread, intercept: quality.model.spread_intercept };
    told.interval = told.predicted.map((value, i) => quality.model.interval_db.map((end) => value + end * (spread && rows ? Math.exp(evaluate(spread, rows[i])) : 1)));
    const levels = levelsDb(energies), isPredicted = told.predicted.map(Number.isFinite);
    told.unlike = isPredicted.includes(true) && (isOutOfDomain(quality.model, features) || levels.some((level, i) => isPredicted[i] && level < EMPTY_DB)
      || (await changesSpeakers(embed, estimates, rate)));
  }
  const leveled = outputs.map((output, i) => output.map((sample) => sample * Math.fround(gains[i])));
  const orMore = Boolean(isSpeaker) && isSpeaker.length > 1 && isSpeaker.every(Boolean);
  // The only speaker comes first.
  if (isSpeaker && speaks.filter(Boolean).length === 1) leveled.unshift(...leveled.splice(loudest, 1));
  return { estimates: leveled, speakers: isSpeaker && speaks.filter(Boolean).length, orMore, scored: Boolean(scores), ...told };
}

// quality.predictor.QualityPredictor.out_of_domain
function isOutOfDomain({ features: names, means, scales }, features) {
  return names.some((name, k) => name !== "log_duration_seconds" && !name.includes("*") && features[name].some((value) => Math.abs((value - means[k]) / scales[k]) > FARTHEST));
}

// selection.gains_of, consistent
function bestSum(gram, cross) {
  const norms = gram.map((row, i) => Math.sqrt(Math.max(row[i], TINY)));
  const unit = gram.map((row, i) => row.map((value, j) => value / (norms[i] * norms[j])));
  return leastSquares(unit, cross.map((value, i) => value / norms[i]), 1e-6).map((value, i) => (gram[i][i] > 0 ? value / norms[i] : 0));
}

const mixed = (estimates, gains) => estimates[0].map((_, t) => estimates.reduce((sum, estimate, i) => sum + Math.fround(gains[i]) * estimate[t], 0));

// quality.features.levels_db
function levelsDb(energies) {
  const strongest = Math.max(...energies);
  return energies.map((energy) => (strongest > 0 ? decibels(Math.max(energy / strongest, 10 ** (LOWEST_LEVEL_DB / 10))) : LOWEST_LEVEL_DB));
}

// decision._is_single_speaker: null where that is not sure, and whether all estimates hold the same voice.
async function isSingleSpeaker(detector, features, gram, cross, estimates, rate, embed) {
  if (!detector || !features || detector.encoder !== embed.fingerprint) return [null, false];
  const sound = Object.fromEntries(Object.entries(features).map(([name, values]) => [name, Math.max(...values.filter(Number.isFinite))]));
  if (detector.noise && flags(detector.noise, sound)) return [null, false];
  if (!Object.entries(detector.sound).every(([name, [low, high]]) => low <= sound[name] && sound[name] <= high)) return [null, false];
  const evidence = await speakerEvidence(embed, gram, cross, estimates, rate), logOdds = evaluate(detector.one, ruleFeatures(evidence, sound));
  const single = logOdds > detector.one.threshold ? true : logOdds < detector.several_below ? false : null;
  return [single, evidence.outputs_between > SAME_VOICE];
}

// quality.single_speaker.rule_features
function ruleFeatures(voices, sound) {
  const found = { ...sound, ...voices, correlation_squared: 1 / (1 + 10 ** (-voices.correlation_db / 10)) };
  for (const [one, other] of pairsOf(Object.keys(voices))) found[`${one}*${other}`] = voices[one] * voices[other];
  return found;
}

const WINDOW_SECONDS = 1.5, HOP_SECONDS = 0.75, PAUSE_FRAME_SECONDS = 0.02, LEAST_WINDOWS = 3;
const SWAP_WINDOW_SECONDS = 0.8, SWAP_SPLITS = [0.3, 0.4, 0.5, 0.6, 0.7], SWAP_MARGIN = 0.05;
const PAUSE_DB = 30, LOUD_SHARE = 0.95, UNLIKE_SHARE = 0.1, OWN_SHARE = 0.8, UNKNOWN_COSINE = 0.5, SAME_VOICE = 0.75;

// Where windows of speech begin, in frames.
function windowStarts(count) {
  const length = round(WINDOW_SECONDS / PAUSE_FRAME_SECONDS), hop = round(HOP_SECONDS / PAUSE_FRAME_SECONDS);
  return Array.from({ length: Math.max(0, Math.floor((count - length) / hop) + 1) }, (_, i) => i * hop);
}

// quality.voices._voices, of the windows of frames.
async function speechVoices(embed, frames, rate) {
  const length = round(WINDOW_SECONDS / PAUSE_FRAME_SECONDS), waveforms = [];
  for (const start of windowStarts(frames.length)) {
    const window = Float32Array.from(frames.slice(start, start + length).flatMap((frame) => [...frame]));
    waveforms.push(await resample(window, rate, embed.rate));
  }
  return waveforms.length ? (await embed(waveforms)).map(unit) : [];
}

// quality.voices._cosines
function cosinesOf(embeddings) {
  const cosines = [];
  embeddings.forEach((one, i) => embeddings.forEach((other, j) => { if (Math.abs(i - j) > 1) cosines.push(dot(one, other)); }));
  return cosines;
}

// The direction of the sum of embeddings.
const direction = (own) => unit(own[0].map((_, d) => own.reduce((sum, row) => sum + row[d], 0)));

// quality.voices.speaker_evidence
export async function speakerEvidence(embed, gram, cross, estimates, rate) {
  if (estimates.length < 2 || gram.every((row) => row.every((value) => value === 0))) return {};
  const { frames, energies } = speechFrames(bestSum(gram, cross), estimates, rate), length = round(WINDOW_SECONDS / PAUSE_FRAME_SECONDS);
  const starts = windowStarts(frames.length);
  if (starts.length < LEAST_WINDOWS) return {};
  const embeddings = await speechVoices(embed, frames, rate);
  const totals = starts.map((start) => estimates.map((_, j) => energies.slice(start, start + length).reduce((sum, own) => sum + own[j], 0)));
  const cosines = cosinesOf(embeddings);
  const centers = estimates.map((_, j) => embeddings.filter((_, i) => totals[i][j] / Math.max(totals[i].reduce((a, b) => a + b), TINY) > OWN_SHARE));
  const among = centers.filter((own) => own.length).map(direction);
  const outputs = [];
  for (const estimate of estimates) outputs.push(await speechVoices(embed, speechFrames([1], [estimate], rate).frames, rate));
  const means = outputs.filter((own) => own.length).map(direction), least = (rows) => Math.min(...rows.flatMap((one) => rows.map((other) => dot(one, other))));
  const strongest = gram.map((row, i) => row[i]), loudest = cosinesOf(outputs[strongest.indexOf(Math.max(...strongest))]);
  const powers = gram.map((row, i) => Math.max(row[i], TINY));
  return {
    levels_range: Math.min(MOST_RANGE_DB, range(levelsDb(powers))),
    projections_range: range(levelsDb(cross.map((value, i) => value ** 2 / powers[i]))),
    correlation_db: mean(correlationDb(gram)),
    voice_least: quantile(cosines, UNLIKE_SHARE),
    voice_between: among.length > 1 ? least(among) : mean(cosines),
    outputs_between: means.length > 1 ? least(means) : UNKNOWN_COSINE,
    loudest_least: quantile(loudest.length ? loudest : cosines, UNLIKE_SHARE),
  };
}

const unit = (values) => { const norm = Math.sqrt(dot(values, values)); return values.map((value) => value / (norm > 0 ? norm : 1)); };

// numpy.percentile
function quantile(values, share) {
  const sorted = Float64Array.from(values).sort(), place = share * (sorted.length - 1), low = Math.floor(place);
  return sorted[low] + (place - low) * (sorted[Math.min(low + 1, sorted.length - 1)] - sorted[low]);
}

// quality.voices.speech_frames: where frames begin, and which of them are speech.
function heardFrames(waveform, rate) {
  const size = Math.max(1, round(PAUSE_FRAME_SECONDS * rate)), places = [];
  for (let start = 0; start + size <= waveform.length; start += size) places.push(start);
  const powers = places.map((start) => { const frame = waveform.subarray(start, start + size); return dot(frame, frame) / size; });
  if (!powers.some((power) => power > 0)) return { size, places: [] };
  const levels = powers.map((power) => decibels(Math.max(power, TINY))), least = quantile(levels, LOUD_SHARE) - PAUSE_DB;
  return { size, places: places.filter((_, i) => levels[i] > least) };
}

// quality.voices.speaker_evidence
function speechFrames(gains, estimates, rate) {
  const speech = mixed(estimates, gains), { size, places } = heardFrames(speech, rate);
  const own = (start) => estimates.map((estimate) => { const part = estimate.subarray(start, start + size); return dot(part, part); });
  return { frames: places.map((start) => speech.subarray(start, start + size)), energies: places.map(own) };
}

// quality.voices.changes_speakers
export async function changesSpeakers(embed, estimates, rate) {
  const voices = [];
  for (const estimate of estimates) voices.push(await voicesOf(embed, estimate, rate));
  const total = (windows) => (windows.length ? windows[0].voice.map((_, d) => windows.reduce((sum, { voice }) => sum + voice[d], 0)) : null);
  return SWAP_SPLITS.some((split) => {
    const at = split * estimates[0].length;
    const halves = voices.map((own) => [own.filter(({ middle }) => middle < at), own.filter(({ middle }) => middle >= at)].map(total));
    const heard = halves.filter(([early, late]) => early?.every(Number.isFinite) && late?.every(Number.isFinite));
    if (heard.length < 2) return false;
    const cosines = heard.map(([early]) => heard.map(([, late]) => dot(unit(early), unit(late))));
    return mean(assignment(cosines).map((column, row) => cosines[row][column])) - mean(cosines.map((row, i) => row[i])) > SWAP_MARGIN;
  });
}

// quality.voices._voices
async function voicesOf(embed, estimate, rate) {
  const { size, places } = heardFrames(estimate, rate), length = round(SWAP_WINDOW_SECONDS / PAUSE_FRAME_SECONDS);
  const waveforms = [], middles = [];
  for (let start = 0; start + length <= places.length; start += length) {
    const own = places.slice(start, start + length), window = new Float32Array(length * size);
    own.forEach((place, i) => window.set(estimate.subarray(place, place + size), i * size));
    waveforms.push(await resample(window, rate, embed.rate));
    middles.push(mean(own));
  }
  const voice = waveforms.length ? await embed(waveforms) : [];
  return voice.map((one, i) => ({ voice: one, middle: middles[i] }));
}
