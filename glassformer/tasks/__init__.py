"""What people do with a loaded model: each verb takes a Bundle first, and is a method of it too."""
