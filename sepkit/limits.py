"""Bounds on what a file from elsewhere may ask for. SECURITY.md says what they promise.

Everything that reads a file checks it against a number of this module before it takes memory or time for it. Each
number lies far beyond what speech separation needs, so that a legitimate file never meets it.
"""

# Longest line that a command prints about a mistake: about twenty lines of a terminal.
MESSAGE_CHARACTERS = 2000
# Longest form in which a message shows a value that was found.
VALUE_CHARACTERS = 160
# Hz, of recordings: telephone speech has 8000, the fastest converters have 768000.
SAMPLE_RATES = (1_000, 768_000)
# Before the samples of a wav that comes through a pipe, whose header is read as a whole; programs write 44 to some
# hundreds.
WAV_HEADER_BYTES = 2**16
# Of a recording: the largest microphone arrays in use have fewer, and every channel multiplies memory.
CHANNELS = 256
# Of a sample, full scale 1: beyond it, estimates and energies no longer fit into float32.
AMPLITUDE = 1e15
# Of a recording: a week. Recordings are separated in bounded memory, but their estimates need room on the disk.
RECORDING_SECONDS = 7 * 24 * 3600
# Of a mixture in a manifest, which is held in memory, 1 GB for each source: 9 hours at 8 kHz, 90 minutes at 48 kHz.
MIXTURE_SAMPLES = 2**28
# Speaker turns of a recording in diarization: a meeting of an hour has about a thousand.
TURNS = 50_000
# In a recording, where who speaks when is measured: its memory grows with turns times speakers.
TURN_SPEAKERS = 200
# In a meeting, where words are measured: its time grows with the square; an hour of talk has some 10,000.
MEETING_WORDS = 100_000
# Largest position in a recording that a manifest may name: a week at the highest rate.
FILE_SAMPLES = 2**40
# Largest factor in a manifest, 120 dB: beyond it float32 sums lose the other source.
GAIN = 1e6
# Of the id of a mixture: file names, which hold 255 bytes, are made of it.
ID_BYTES = 200
# Of any other text in a manifest: the longest path that Linux takes.
TEXT_CHARACTERS = 4096
# Of a manifest or any other table or text; a manifest has some 600 bytes for each mixture, and the largest corpora in
# use have 60,000.
TEXT_BYTES = 2**28
# Of a configuration, `model.yaml` or `quality.yaml`: the largest that sepkit writes has some 10 kB.
YAML_BYTES = 4_000_000
# Values in a YAML file, where every alias counts as all that it stands for.
YAML_NODES = 100_000
# Characters of a number in a YAML file; 25 represent any float64.
YAML_NUMBER_CHARACTERS = 64
# Of a model: 4 GB in float32. The largest published separators have some 60 million.
MODEL_PARAMETERS = 1_000_000_000
# Layers and weights of a model, which each take time to make, and more for each of its tensors; models that ship have 2
# to 3 for each.
MODEL_PARTS, MODEL_PARTS_PER_TENSOR = 1000, 10
# Of a model that is trained: those that ship have some hundred, the largest published ones 2000.
MODEL_TENSORS = 5000
# Of a model: the most speakers that published models separate is 20, and estimates, masks and costs
# each grow with the number.
HYPOTHESES = 128
# In an epoch of dynamic mixing, whose order is held in memory: a year of segments of three seconds.
EPOCH_MIXTURES = 10_000_000
# Of a masker: any width, chunk or number of layers; and blocks whose dilations double, 16 million frames last.
LAYER_SIZE, DILATED_BLOCKS = 100_000, 24
# Of embeddings that contrastive training keeps: 0.5 GB at 128 dimensions.
QUEUE = 1_000_000
# What the lengths of inputs may have to be a multiple of, and be padded to; SuDoRM-RF has 80.
PADDED_SAMPLES = 65536
# Of a model of continuous depth; its errors fall in proportion to the steps, and are gone long before.
DEPTH_STEPS = 10_000
# Of a frame of the short-time Fourier transform, whose filters take its square in memory: 43 ms at 192 kHz.
WINDOW_SAMPLES = 8192
# Of an exported model: the most that a file of its format can hold.
GRAPH_BYTES = 2**31 - 1
# Of an exported model's file: parts and numbers that are read one by one, in about a second. Models of this package
# have some 30,000, and larger weights add none.
GRAPH_FIELDS = 500_000
# Of a tensor that ONNX Runtime computes of an exported graph's constants while it loads it, plus those for each byte of
# the file: weights in half precision become twice as large.
FOLDED_BYTES, FOLDED_BYTES_PER_BYTE = 2**20, 2
# Memory that an exported graph may take when it is opened on the CPU, for each byte of its file beside `GRAPH_MEMORY`:
# its weights lie there up to six times.
OPENED_BYTES_PER_BYTE = 8
# Bytes that an exported graph may take when it runs on the CPU, beside what the process has, plus those for each sample
# of sound that it gets at once. Conv-TasNet takes 3,500 for each, a SepFormer 12,000.
GRAPH_MEMORY, GRAPH_MEMORY_PER_SAMPLE = 3 * 2**28, 12_000
# Bytes that it may take for each byte of its file beside that, and how many those may become: attention over all bands
# takes 2 GB for 4 s of sound, in a file of 20 MB.
GRAPH_MEMORY_PER_BYTE, MOST_GRAPH_MEMORY_OF_BYTES = 64, 2**31
# What tensors of all exported graphs in a process may take together where the system has no such bound.
GRAPH_ARENA_BYTES = 3 * 2**30
# Of one run of an exported graph, plus those for each second of sound; a slower one is of no use, or does not end.
ONNX_SECONDS, ONNX_SECONDS_PER_SECOND = 120.0, 60.0
# Files in an archive of a corpus; LibriSpeech has some 300,000.
ARCHIVE_MEMBERS = 2_000_000
# How many times its own size an archive may hold: tables grow fivefold, speech hardly.
ARCHIVE_GROWTH = 20
# What any archive may hold beside that.
ARCHIVE_BYTES = 100_000_000
# Largest seed: NumPy and torch take more, but not the same ones.
SEED = 2**63 - 1
# Longest training segment, which is held in memory for every mixture of a batch.
SEGMENT_SECONDS = 3600.0
# Of learning rates and weight decays: beyond it the first step leaves nothing that float32 holds.
LARGEST_RATE = 1e6
# Of training: beyond it, no device of today holds a batch of the shortest segments.
BATCH_SIZE = 65536
# Of one command: workers, devices and nodes.
PROCESSES = 4096
