"""The output of a build: its folder (local or on an object store), the build's identity, and the published files."""

from pipeline.output.folder import CARD_NAME, PUBLISHED, REPORT_NAME, SUMMARY_NAME, OutputFolder, check_writable
from pipeline.output.identity import MARK_NAME
from pipeline.output.object_store import StoredOutput, open_output_folder
from pipeline.output.publish import check_labels, hash_build, list_warnings, write_set
from pipeline.output.shortcuts import check_shortcuts
