"""Private classes of Streamlit that annotations and `isinstance` checks need."""

from streamlit.delta_generator import DeltaGenerator as DeltaGenerator
from streamlit.runtime.uploaded_file_manager import UploadedFile as UploadedFile
