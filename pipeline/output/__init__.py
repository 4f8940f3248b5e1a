"""The output of a build: its folder on a disk or store, the identity of the build, and the files published there."""

from pipeline.output.folder import PUBLISHED, REPORT_NAME, OutputFolder, check_writable
from pipeline.output.identity import MARK_NAME
from pipeline.output.object_store import StoredOutput, open_output_folder
from pipeline.output.publish import check_labels, hash_build, list_warnings, write_set
