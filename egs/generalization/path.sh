. ../utils/path.sh
