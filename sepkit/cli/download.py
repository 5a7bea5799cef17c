"""`sepkit download`: the corpora that may be downloaded."""

from sepkit.cli._parser import OptionsCommand
from sepkit.corpora.options import DownloadOptions

main = OptionsCommand(DownloadOptions, "sepkit.corpora.download:download")
