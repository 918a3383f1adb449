"""The strip of sample pictures; it also hands a pasted picture to the page's file uploader."""
