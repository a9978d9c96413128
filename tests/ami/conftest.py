"""A root that stands for ParallelCluster's official image, with local packages in place of the vendors'.

apt, dpkg, dkms, modinfo, pip and the compiler in it are real; the packages hold next to nothing. Each test
works on an overlay of it, in namespaces of its own without a network.
"""

from __future__ import annotations

import hashlib
import io
import os
import shlex
import shutil
import signal
import subprocess
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from toolkit.plan.node_software import node_software
from toolkit.render.image import setup_files

SOFTWARE = node_software()
KERNEL = SOFTWARE.kernel
NEWER_KERNEL = KERNEL.replace("1018", "1019")
NEWER_DRIVER = "580.178.04"
OLD_DRIVER = "570.172.08"
PACKAGES_IN_ROOT = "ca-certificates,curl,dkms,python3-venv"

MODULE = """\
static const char info[] __attribute__((section(".modinfo"), used)) = "version={version}\\0license={licence}";
"""
DKMS_CONF = """\
PACKAGE_NAME="{name}"
PACKAGE_VERSION="{version}"
BUILT_MODULE_NAME[0]="{module}"
DEST_MODULE_LOCATION[0]="/kernel/drivers/misc"
MAKE[0]="cc -c -o {module}.ko {module}.c"
CLEAN="rm -f {module}.ko"
STRIP[0]="no"
AUTOINSTALL="yes"
"""


def module_source(name: str, version: str, licence: str = "GPL", shown: str = "") -> dict[str, str]:
    """The files of a module that dkms can build, by their place."""
    module = name.replace("-", "_")
    folder = f"usr/src/{name}-{version}"
    return {
        f"{folder}/dkms.conf": DKMS_CONF.format(name=name, version=version, module=module),
        f"{folder}/{module}.c": MODULE.format(version=shown or version, licence=licence),
    }


@dataclass
class Repository:
    """A folder with packages and apt's index of them."""

    folder: Path
    index: list[str] = field(default_factory=list)

    def add(
        self,
        name: str,
        version: str,
        depends: str = "",
        *,
        files: dict[str, str] | None = None,
        postinst: str = "",
        control: str = "",
    ) -> Path:
        tree = self.folder / "tree"
        shutil.rmtree(tree, ignore_errors=True)
        for path, text in (files or {}).items():
            target = tree / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
            target.chmod(0o755 if text.startswith("#!") else 0o644)
        description = f"Package: {name}\nVersion: {version}\nArchitecture: all\nMaintainer: nobody\n{control}"
        description += f"Depends: {depends}\n" if depends else ""
        (tree / "DEBIAN").mkdir(parents=True)
        (tree / "DEBIAN/control").write_text(f"{description}Description: stands for {name}\n")
        if postinst:
            (tree / "DEBIAN/postinst").write_text(f"#!/bin/sh\nset -e\n{postinst}\n")
            (tree / "DEBIAN/postinst").chmod(0o755)
        deb = self.folder / f"{name}_{version.replace(':', '%3a')}_all.deb"
        subprocess.run(
            ["dpkg-deb", "-Znone", "--build", str(tree), str(deb)], check=True, capture_output=True
        )
        content = deb.read_bytes()
        stanza = (
            f"Filename: ./{deb.name}\nSize: {len(content)}\nSHA256: {hashlib.sha256(content).hexdigest()}\n"
        )
        self.index.append(f"{description}{stanza}Description: stands for {name}\n")
        (self.folder / "Packages").write_text("\n".join(self.index))
        return deb


def fill_official(repository: Repository) -> str:
    """What the official image has, older than what is wanted; the names of the packages to install."""
    repository.add("linux-base", "4.5")
    fill_kernel(repository, KERNEL)
    repository.add("nvidia-container-toolkit", "1.17.8-1")
    repository.add("nvidia-fabricmanager-570", f"{OLD_DRIVER}-1")
    repository.add("nvidia-imex-570", f"{OLD_DRIVER}-1")
    repository.add("datacenter-gpu-manager-4-cuda12", "1:4.4.1-1")
    return (
        "linux-aws linux-base nvidia-container-toolkit nvidia-fabricmanager-570 nvidia-imex-570 "
        "datacenter-gpu-manager-4-cuda12"
    )


def fill_kernel(repository: Repository, kernel: str) -> None:
    version = kernel.removesuffix("-aws")
    modules = f"lib/modules/{kernel}"
    lists = {f"{modules}/{name}": "" for name in ("modules.order", "modules.builtin")}
    repository.add(f"linux-image-{kernel}", f"{version}.1", files=lists)
    repository.add(
        f"linux-headers-{kernel}",
        f"{version}.1",
        files={f"usr/src/linux-headers-{kernel}/include/generated/autoconf.h": ""},
        postinst=f"mkdir -p /{modules} && ln -sfn /usr/src/linux-headers-{kernel} /{modules}/build",
    )
    repository.add(f"linux-modules-extra-{kernel}", f"{version}.1")
    meta = version.replace("-", ".")
    for kind in ("image", "headers"):
        repository.add(f"linux-{kind}-aws", meta, f"linux-{kind}-{kernel}")
    repository.add("linux-aws", meta, f"linux-image-aws (= {meta}), linux-headers-aws (= {meta})")


def fill_vendor(repository: Repository) -> None:
    """What the vendors' repositories offer: the wanted versions and newer ones, which apt would prefer."""
    fill_kernel(repository, NEWER_KERNEL)
    for driver in (SOFTWARE.nvidia_driver, NEWER_DRIVER):
        version = f"{driver}-1ubuntu1"
        # Loose, as NVIDIA's own: a dependency would come in its newest version.
        repository.add("nvidia-open-580", version, f"nvidia-driver-580-open (>= {version})")
        repository.add(
            "nvidia-driver-580-open",
            version,
            f"nvidia-dkms-580-open (= {version}), libnvidia-compute-580 (= {version})",
        )
        repository.add(
            "libnvidia-compute-580", version, files={"usr/bin/nvidia-smi": f"#!/bin/sh\necho {driver}\n"}
        )
        repository.add(
            "nvidia-dkms-580-open",
            version,
            "dkms",
            files=module_source("nvidia", driver, "Dual MIT/GPL"),
            postinst=f"dkms add nvidia/{driver} || true\n"
            "touch /var/tmp/in-postinst\nif [ -e /srv/interrupt ]; then rm /srv/interrupt; sleep 120; fi",
        )
        for name in ("nvidia-fabricmanager", "nvidia-imex"):
            repository.add(name, f"{driver}-1", control=f"Conflicts: {name}-570\nReplaces: {name}-570\n")
    repository.add("cuda-toolkit-13-0", "13.0.2-1", files={"usr/local/cuda-13.0/version.json": "{}"})
    repository.add("datacenter-gpu-manager-4-cuda13", "1:4.5.2-1")
    repository.add("python3-dev", "3.11.2-1")
    # What may be upgraded, to see that an upgrade does something.
    repository.add("nvidia-container-toolkit", "1.18.0-1")


SOURCES = "deb [trusted=yes] file:/srv/{0} ./\n"


def efa_tarball(path: Path) -> str:
    """An installer that leaves what the real one leaves, in the wanted versions; its archive's digest."""
    sources = module_source("efa", "3.3.0", shown=SOFTWARE.efa_module) | module_source(
        "efa-nv-peermem", "1.2.3"
    )
    script = f"""#!/bin/bash
set -e
echo "$@" >>/var/tmp/efa-arguments
for old in efa/2.17.2 efa-nv-peermem/1.2.1; do dkms remove $old --all || true; done
cp -r "$(dirname "$0")"/usr/src/* /usr/src/
for new in efa/3.3.0 efa-nv-peermem/1.2.3; do dkms add $new || true; dkms install $new -k {KERNEL}; done
mkdir -p /opt/amazon/efa/bin
printf '#!/bin/sh\\necho "libfabric: {SOFTWARE.libfabric}"\\n' >/opt/amazon/efa/bin/fi_info
chmod 755 /opt/amazon/efa/bin/fi_info
printf '# EFA installer version: {SOFTWARE.efa_installer}\\nefa\\n' >/opt/amazon/efa_installed_packages
"""
    with tarfile.open(path, "w:gz") as archive:
        for name, text in {"efa_installer.sh": script, **sources}.items():
            member = tarfile.TarInfo(f"aws-efa-installer/{name}")
            member.size, member.mode = len(text.encode()), 0o755
            archive.addfile(member, io.BytesIO(text.encode()))
    return hashlib.sha256(path.read_bytes()).hexdigest()


def wheel(folder: Path, name: str, version: str, command: str = "") -> Path:
    """A wheel with one module and, if named, a command that prints its interpreter's prefix."""
    info = f"{name}-{version}.dist-info"
    members = {
        f"{name}.py": "import sys\ndef main():\n    print(sys.prefix)\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    if command:
        members[f"{info}/entry_points.txt"] = f"[console_scripts]\n{command} = {name}:main\n"
    members[f"{info}/RECORD"] = "".join(f"{member},,\n" for member in members) + f"{info}/RECORD,,\n"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for member, text in members.items():
            archive.writestr(member, text)
    return path


@dataclass(frozen=True)
class OfficialImage:
    """The root that every test's overlay lies on; the digests are of the archives in its /srv."""

    root: Path
    efa_sha256: str
    payload_sha256: str


@pytest.fixture(scope="session")
def official_image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OfficialImage]:
    if shutil.which("debootstrap") is None:
        pytest.fail("these tests make a Debian root: apt-get install debootstrap")
    root = tmp_path_factory.mktemp("official") / "root"
    release = next(
        line.partition("=")[2].strip('"')
        for line in Path("/etc/os-release").read_text().splitlines()
        if line.startswith("VERSION_CODENAME=")
    )
    # Nothing here must survive a power cut, and waiting for the disk is most of the time.
    (root / "etc/dpkg/dpkg.cfg.d").mkdir(parents=True)
    (root / "etc/dpkg/dpkg.cfg.d/unsafe-io").write_text("force-unsafe-io\n")
    made = subprocess.run(
        ["debootstrap", "--variant=minbase", f"--include={PACKAGES_IN_ROOT}", release, str(root)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stdout[-2000:]
    try:
        yield make_official(root)
    finally:
        shutil.rmtree(root, ignore_errors=True)


def make_official(root: Path) -> OfficialImage:
    srv = root / "srv"
    base, vendor, keyring = (Repository(srv / name) for name in ("base", "vendor", "keyring"))
    for repository in (base, vendor, keyring):
        repository.folder.mkdir(parents=True)
    names = fill_official(base)
    fill_vendor(vendor)
    for path, text in (
        module_source("nvidia", OLD_DRIVER, "Dual MIT/GPL")
        | module_source("gdrdrv", "2.5")
        | module_source("efa", "2.17.2")
        | module_source("efa-nv-peermem", "1.2.1")
    ).items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    for path, text in OFFICIAL_PROGRAMS.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(f"#!/bin/bash\n{text}\n")
        (root / path).chmod(0o755)
    (root / "etc/apt/sources.list").write_text(SOURCES.format("base"))
    chroot(root, OFFICIAL_STATE.format(names=names))
    (root / "etc/apt/sources.list").write_text(SOURCES.format("base") + SOURCES.format("vendor"))
    keyring.add(
        "cuda-keyring", "1.1-1", files={"etc/apt/sources.list.d/cuda.list": SOURCES.format("vendor")}
    ).rename(srv / "cuda-keyring.deb")
    efa_sha256 = efa_tarball(srv / "efa.tar.gz")
    wheel(srv / "wheels", "vllm", SOFTWARE.vllm, "vllm")
    wheel(srv / "wheels", "nixl", SOFTWARE.nixl)
    payload = srv / "payload.tar.gz"
    with tarfile.open(payload, "w:gz") as archive:
        for name, command in (("pd_connector", ""), ("pd_toolkit", "toolkit")):
            made = wheel(root.parent / "payload", name, "0.1.0", command)
            archive.add(made, f"wheels/{made.name}")
    return OfficialImage(root, efa_sha256, hashlib.sha256(payload.read_bytes()).hexdigest())


# The driver's uninstaller, and what a build instance has but not this root.
OFFICIAL_PROGRAMS = {
    "usr/bin/nvidia-uninstall": f"dkms remove nvidia/{OLD_DRIVER} --all\n"
    f'rm -rf /usr/src/nvidia-{OLD_DRIVER} /usr/bin/nvidia-smi "$0"',
    "usr/bin/nvidia-smi": f"echo {OLD_DRIVER}",
    "usr/local/bin/systemctl": "if [[ $1 == list-unit-files ]]; then echo $3 enabled; exit; fi\n"
    'echo "$@" >>/var/tmp/systemctl',
    "usr/local/bin/aws": '[[ $* == "s3 cp --only-show-errors s3://pd-"* ]] && cp "/srv/${4##*/}" "$5"',
    "opt/amazon/efa/bin/fi_info": 'echo "libfabric: 2.1.0amzn5.0"',
}
OFFICIAL_STATE = f"""
set -e
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq {{names}}
apt-mark hold nvidia-fabricmanager-570
for module in nvidia/{OLD_DRIVER} gdrdrv/2.5 efa/2.17.2 efa-nv-peermem/1.2.1; do
  dkms add $module
  dkms install $module -k {KERNEL}
done
printf '# EFA installer version: 1.43.2\\nefa\\n' >/opt/amazon/efa_installed_packages
mkdir /usr/local/cuda-12.8
ln -s cuda-12.8 /usr/local/cuda
"""


def chroot(root: Path, script: str) -> None:
    command = f"mount -t proc proc {root}/proc && exec chroot {root} /bin/bash -c {shlex.quote(script)}"
    argv = ["unshare", "--mount", "--pid", "--net", "--fork", "--kill-child", "bash", "-c", command]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@dataclass
class Machine:
    """A build instance: an overlay on the official image. `changed` is the folder of what differs from it."""

    image: OfficialImage
    folder: Path
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def changed(self) -> Path:
        return self.folder / "upper"

    def put(self, name: str, text: str) -> None:
        path = self.changed / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def lay_down(self, **versions: str) -> None:
        """The files of ami-setup as the component lays them down, with these versions in place of ours."""
        for name, text in setup_files().items():
            if name == "versions.yaml":
                for key, version in {"efa_installer_sha256": self.image.efa_sha256, **versions}.items():
                    text = text.replace(getattr(SOFTWARE, key), version)
            self.put(f"opt/pd/ami-setup/{name}", text)

    def steps(self, *numbers: str, **environment: str) -> tuple[int, str]:
        """Runs these steps in the order given, as the component does."""
        names = " ".join(f"/opt/pd/ami-setup/steps/{number}-*.sh" for number in numbers)
        return self.run(f'set -e; for step in {names}; do bash "$step"; done', **environment)

    def start(self, script: str, **environment: str) -> subprocess.Popen[str]:
        merged = self.folder / "merged"
        for name in ("upper", "work", "merged"):
            (self.folder / name).mkdir(exist_ok=True)
        options = f"lowerdir={self.image.root},upperdir={self.changed},workdir={self.folder / 'work'}"
        mount = shlex.join(["mount", "-t", "overlay", "overlay", "-o", options, str(merged)])
        variables = {
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": "/srv/wheels",
            **self.environment,
            **environment,
        }
        inside = ["env", "-i", *(f"{key}={value}" for key, value in variables.items()), "bash", "-c", script]
        command = f"{mount} && mount -t proc proc {merged}/proc && exec chroot {merged} {shlex.join(inside)}"
        return subprocess.Popen(
            ["unshare", "--mount", "--pid", "--net", "--fork", "--kill-child", "bash", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, script: str, **environment: str) -> tuple[int, str]:
        process = self.start(script, **environment)
        output, _ = process.communicate(timeout=240)
        return process.returncode, output

    def state(self) -> dict[str, str]:
        """Every file that differs from the image, with its content's digest, but for caches and logs."""
        left_out = ("var/log/", "var/cache/", "var/lib/apt/", "tmp/", "var/tmp/systemctl")
        found = {}
        for path in sorted(self.changed.rglob("*")):
            name = str(path.relative_to(self.changed))
            if name.startswith(left_out) or "__pycache__" in name:
                continue
            if path.is_symlink():
                found[name] = str(path.readlink())
            elif path.is_file():
                found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
        return found

    def kill(self, process: subprocess.Popen[str]) -> None:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=30)


@pytest.fixture
def machine(official_image: OfficialImage, tmp_path: Path) -> Iterator[Machine]:
    yield Machine(official_image, tmp_path, {"PD_EFA_URL": "file:///srv/efa.tar.gz"})
    shutil.rmtree(tmp_path, ignore_errors=True)
