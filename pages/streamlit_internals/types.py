"""Streamlit's classes that annotations and `isinstance` need; it does not export them."""

from streamlit.delta_generator import DeltaGenerator as DeltaGenerator
from streamlit.runtime.uploaded_file_manager import UploadedFile as UploadedFile
