//! A log file that is rotated by size: `NAME.log` and the one before, `NAME.log.1`.

use std::{
    path::{Path, PathBuf},
    time::SystemTime,
};
use tokio::{
    fs::{self, File, OpenOptions},
    io::{self, AsyncReadExt, AsyncSeekExt, AsyncWriteExt},
};

/// Size at which a file is rotated, bytes.
pub(crate) const FILE_BYTES: u64 = 8 << 20;

#[derive(Debug)]
pub(crate) struct RotatedFile {
    path: PathBuf,
    limit: u64,
    file: File,
    size: u64,
}

async fn open(path: &Path) -> io::Result<(File, u64)> {
    let mut options = OpenOptions::new();
    options.append(true).create(true);
    #[cfg(unix)]
    options.mode(0o600);
    let file = options.open(path).await?;
    let size = file.metadata().await?.len();
    Ok((file, size))
}

impl RotatedFile {
    pub(crate) async fn open(path: PathBuf, limit: u64) -> io::Result<Self> {
        let (file, size) = open(&path).await?;
        Ok(Self { path, limit, file, size })
    }

    /// The last `limit` bytes of what is there, and when they were written.
    pub(crate) async fn end(&self, limit: u64) -> io::Result<(String, SystemTime)> {
        let mut file = File::open(&self.path).await?;
        let metadata = file.metadata().await?;
        file.seek(io::SeekFrom::Start(metadata.len().saturating_sub(limit))).await?;
        let mut bytes = Vec::new();
        file.take(limit).read_to_end(&mut bytes).await?;
        Ok((String::from_utf8_lossy(&bytes).into_owned(), metadata.modified()?))
    }

    /// Appends whole lines.
    pub(crate) async fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        if self.size > 0 && self.size + lines.len() as u64 > self.limit {
            self.rotate().await?;
        }
        self.file.write_all(lines).await?;
        // tokio's files hand over to a thread; without this the last lines before a crash could be lost with us.
        self.file.flush().await?;
        self.size += lines.len() as u64;
        Ok(())
    }

    async fn rotate(&mut self) -> io::Result<()> {
        let mut older = self.path.clone().into_os_string();
        older.push(".1");
        fs::rename(&self.path, &older).await?;
        (self.file, self.size) = open(&self.path).await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn rotates_and_keeps_one_older() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("0.log");
        let mut file = RotatedFile::open(path.clone(), 10).await.unwrap();
        for line in ["one\n", "two\n", "three\n", "four\n", "five\n"] {
            file.write(line.as_bytes()).await.unwrap();
        }
        drop(file);
        let read = |path: &Path| std::fs::read_to_string(path).unwrap();
        assert_eq!(read(&dir.path().join("0.log.1")), "three\n");
        assert_eq!(read(&path), "four\nfive\n");
        // A later start goes on where this one ended.
        let mut file = RotatedFile::open(path.clone(), 10).await.unwrap();
        file.write(b"six\n").await.unwrap();
        assert_eq!(read(&path), "six\n");
        assert_eq!(read(&dir.path().join("0.log.1")), "four\nfive\n");
    }
}
