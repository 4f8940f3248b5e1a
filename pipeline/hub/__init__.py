"""Publishes folders to the Hugging Face Hub: what would change, who wrote what is there, and one commit a revision."""

from pipeline.hub.files import PushFile
from pipeline.hub.push import Revision, push
from pipeline.hub.repository import PushError, Repository, RepositoryKind
