# --sample-rate HZ     8000 or 16000
# --mode min|max       mixtures are cut to the shortest source, or padded to the longest
# --cache DIR          folder of the downloads; all recipes may share it
# --mirror URL         folder that holds the archives, in place of their publishers
# --checksums FILE     checksums, as md5sum writes them, of a mirror with archives other than the published ones
# shellcheck shell=bash disable=SC2034
sample_rate=8000
mode=min
cache=../downloads
mirror=
checksums=
