/* The smallest extension on libaio: read(descriptor, offset, length) -> bytes. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <libaio.h>

static PyObject *read_one(PyObject *self, PyObject *arguments)
{
	io_context_t context = NULL;
	struct iocb iocb, *list[1] = {&iocb};
	struct io_event event;
	PyObject *bytes;
	long long offset;
	Py_ssize_t length;
	int fd, ret;

	(void)self;
	if (!PyArg_ParseTuple(arguments, "iLn", &fd, &offset, &length))
		return NULL;
	bytes = PyBytes_FromStringAndSize(NULL, length);
	if (!bytes)
		return NULL;
	io_prep_pread(&iocb, fd, PyBytes_AS_STRING(bytes), (size_t)length, offset);
	ret = io_setup(1, &context);
	if (ret == 0) {
		ret = io_submit(context, 1, list);
		if (ret == 1)
			ret = io_getevents(context, 1, 1, &event, NULL);
		if (ret == 1)
			ret = (int)(long)event.res;
		io_destroy(context);
	}
	if (ret < 0) {
		Py_DECREF(bytes);
		errno = -ret;
		return PyErr_SetFromErrno(PyExc_OSError);
	}
	_PyBytes_Resize(&bytes, ret);
	return bytes;
}

static PyMethodDef methods[] = {
	{"read", read_one, METH_VARARGS, "Reads length bytes of a descriptor from offset on."},
	{NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
	PyModuleDef_HEAD_INIT, "aioread", NULL, -1, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit_aioread(void)
{
	return PyModule_Create(&module);
}
