"""Commands that coding agents really run, one of each sort. READ: those that only read beneath the workspace."""

READ = r"""
ls
ls -la
ls -la src tests
ls src/*.py
ls -R src | head -50
cat README.md
cat src/a.py src/b.py
cat -n src/a.py | head -80
head -100 src/a.py
head -n 40 src/a.py
tail -n 20 log.txt
tail -50 build.log
wc -l src/*.py
grep -rn "def main" src
grep -rn --include="*.py" "import os" .
grep -n "TODO" src/a.py | head -20
grep -rl foo . | sort | uniq -c
grep -c "^class" src/a.py
grep -E "a|b" file.txt
rg "def main" src
rg -n --type py "import os"
rg -l foo | head
rg --files | head -50
rg -i 'error' -g '*.log' -C 3
pwd
pwd && ls
echo "done"
cd src && ls
cd src && grep -rn foo . | wc -l
sort file.txt | uniq | head -5
cut -d: -f1 data.csv | sort -u
diff a.txt b.txt
diff -u a.py b.py | head -40
du -sh .
stat -c %s a.bin
test -f a.txt && echo yes || echo no
[ -d build ] && ls build
cat package.json 2>/dev/null | head -30
ls -la 2>&1 | head
which python3
for f in a b c; do echo "$f"; done
if [ -f x ]; then cat x; else echo none; fi
cmp a.bin b.bin
sha256sum dist/a.whl
basename src/a.py
while read -r line; do echo "$line"; done < list.txt
""".strip().splitlines()

OTHER = r"""
git status
git status --short
git diff
git diff HEAD~1 -- src/a.py
git log --oneline -10
git add -A && git commit -m "Fix the parser"
git checkout -b fix
git stash && git pull --rebase && git stash pop
git show HEAD:src/a.py | head -50
git branch -a
python -m pytest tests/test_a.py -x -q
python -m pytest -k "name and not slow" 2>&1 | tail -30
PYTHONPATH=src python -m pytest tests -q
python -c "import sys; print(sys.version)"
python script.py --flag value
python3 -m venv .venv && .venv/bin/pip install -e .
pip install -r requirements.txt
npm install
npm test
npm run build 2>&1 | tail -20
npx tsc --noEmit
cd web && npm run lint
make
make test 2>&1 | tail -40
cargo build --release
cargo test -- --nocapture
go build ./... && go test ./...
mkdir -p src/new && touch src/new/__init__.py
rm -rf build dist
mv a.py b.py
cp -r src/a src/b
chmod +x run.sh
find . -name "*.py" -not -path "./.venv/*"
find . -type f -name "*.ts" | xargs grep -l foo
find . -name __pycache__ -exec rm -rf {} +
sed -n '10,40p' src/a.py
sed -i 's/foo/bar/g' src/a.py
awk '{print $1}' data.txt | sort | uniq -c | sort -rn | head
curl -s http://localhost:8000/health
curl -sS https://example.com/api | jq '.items[0]'
tar -xzf a.tar.gz
docker compose up -d
ruff check . --fix && ruff format .
mypy src
timeout 60 python server.py &
sleep 2 && curl -s localhost:8000
echo "x" >> file.txt
cat a.txt | tee b.txt
env | sort
ps aux | grep python
kill 1234
export FOO=bar && make
set -e; make; make install
for f in src/*.py; do python -m py_compile "$f"; done
bash -c "make && make check"
X=$(git rev-parse HEAD); echo "$X"
echo "$(git rev-parse --short HEAD)"
xargs -n 1 rm < list.txt
find . -name "*.o" -delete
jq . package.json
nohup python server.py > server.log 2>&1 &
time make
""".strip().splitlines()
OTHER += ["cat > notes.txt <<'EOF'\none\ntwo\nEOF", "python - <<'PY'\nprint(1)\nPY"]
